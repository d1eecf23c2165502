// runnel: the program. Every error ends here as one sentence on stderr.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "apps/cli/output.h"
#include "apps/cli/waiting.h"
#include "apps/commands.h"
#include "apps/package.h"
#include "apps/training/communicator.h"
#include "engine/check.h"
#include "engine/file.h"
#include "engine/text.h"

namespace {

// Names of files stand in sentences as they are: here they lose what no file system would take.
int complain(const std::string& sentence, int status) {
  constexpr size_t longest_name = 255, kept = 60;
  std::string line;
  for (size_t at = 0; at < sentence.size();) {
    const size_t end = std::min(sentence.find_first_of("/ ", at), sentence.size() - 1) + 1;
    const bool is_long = end - at > longest_name + 1;
    line.append(sentence, at, is_long ? kept : end - at);
    if (is_long) line += "... ";
    at = end;
  }
  fmt::print(stderr, "runnel: {}\n", runnel::shown(line));
  return status;
}

constexpr const char* out_of_memory = "out of memory; make the batch, the length or the model smaller";

// Some destructors allocate (nlohmann::json's do), and no exception leaves them.
[[noreturn]] void terminate() {
  try {
    if (std::current_exception()) throw;
  } catch (const std::bad_alloc&) {
    complain(out_of_memory, 1);
    _exit(1);
  } catch (...) {
  }
  std::abort();
}

// Status and sentence of an error. Of several processes, those that fail with rank 0, and so for the same reason, let
// it speak; one that fails alone says who it is, and ends all.
int fail(const std::string& sentence, int status) {
  using namespace runnel;
  Communicator& all = processes();
  if (all.rank() == 0) complain(sentence, status);
  if (all.all_end_together()) return status;
  if (all.rank() > 0) {
    drop_output(false);
    complain(all.name() + ": " + sentence, status);
  }
  all.end_all(status);
}

int run(int argc, char** argv) {
  using namespace runnel;
  try {
    std::string words;  // "copy train"
    for (int i = 1; i < argc && argv[i][0] != '-'; ++i) words.append(i > 1 ? " " : "").append(argv[i]);
    set_own_command(words);
    for (const Package* package : packages())
      if (package->find_launcher) package->find_launcher();
    const bool is_rank_0 = processes().rank() == 0;  // which alone prints and writes
    drop_output(!is_rank_0);
    discard_files(!is_rank_0);
    const CommandLine command_line;
    add_commands(command_line.root());
    return command_line.parse(argc, argv)();
  } catch (const UsageError& error) {
    return fail(error.what(), 2);
  } catch (const std::bad_alloc&) {
    return fail(out_of_memory, 1);
  } catch (const std::exception& error) {
    return fail(error.what(), 1);
  } catch (const PeerFailed&) {
    sleep(10);  // the one that left says why, and ends all
    processes().end_all(1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::set_terminate(terminate);  // first, since what follows allocates
  runnel::spin_shortly(argv);
  runnel::prepare_output();
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on the size of files is then an error like a full disk
  const int status = run(argc, argv);
  runnel::set_processes(std::make_shared<runnel::Communicator>());  // MPI and CUDA may be gone when statics are
  const std::string problem = runnel::output_problem();
  return status == 0 && !problem.empty() ? complain(problem, 1) : status;
}
