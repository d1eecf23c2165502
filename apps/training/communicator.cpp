#include "apps/training/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/check.h"

namespace runnel {
namespace {

std::shared_ptr<Communicator>& connected() {
  static std::shared_ptr<Communicator> all = std::make_shared<Communicator>();
  return all;
}

std::string bytes_of(const std::vector<double>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)};
}

std::vector<double> doubles_of(const std::string& bytes) {
  std::vector<double> values(bytes.size() / sizeof(double));
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(values.data()));
  return values;
}

std::string& own_command() {
  static std::string command;
  return command;
}

}  // namespace

std::string Communicator::name() const {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  return "rank " + std::to_string(rank_) + " on host " + host;
}

std::vector<std::string> Communicator::all_gather(const std::string& bytes) {
  const std::vector<double> sizes = doubles_of(gather(bytes_of({static_cast<double>(bytes.size())})));
  const auto longest = static_cast<size_t>(*std::ranges::max_element(sizes));
  std::string padded = bytes;
  padded.resize(longest);
  const std::string all = gather(padded);
  std::vector<std::string> each;
  for (size_t i = 0; i < sizes.size(); ++i) each.push_back(all.substr(i * longest, static_cast<size_t>(sizes[i])));
  return each;
}

std::vector<double> Communicator::sum(const std::vector<double>& values) {
  const std::vector<double> all = doubles_of(gather(bytes_of(values)));
  std::vector<double> total(values.size());
  for (size_t i = 0; i < all.size(); ++i) total[i % total.size()] += all[i];
  return total;
}

void Communicator::end_all(int status) {
  end_others(status);
  _exit(status);
}

Communicator& processes() { return *connected(); }

void set_processes(std::shared_ptr<Communicator> all) { connected() = std::move(all); }

void set_own_command(const std::string& command) { own_command() = command; }

void check_that_all_agree(nlohmann::json values) {
  values["command"] = own_command();
  const std::vector<std::string> all = processes().all_gather(processes().name() + "\n" + values.dump());
  const auto parsed = [](const std::string& text) { return nlohmann::json::parse(text.substr(text.find('\n') + 1)); };
  const nlohmann::json first = parsed(all[0]);
  for (const std::string& text : all) {
    const nlohmann::json other = parsed(text);
    for (const auto& [what, value] : first.items())
      check(other.value(what, nlohmann::json()) == value, "all processes must be started alike, but ",
            text.substr(0, text.find('\n')), " has ", what, " ", other.value(what, nlohmann::json()).dump(),
            ", and rank 0 ", value.dump());
  }
}

std::vector<std::string> bytes_over_ranks(int64_t count, const std::function<std::string(int64_t i)>& f) {
  Communicator& all = processes();
  // "+", and of each own result: how many bytes, the bytes; or "-": f has thrown.
  std::string own = "+";
  std::exception_ptr problem;
  try {
    for (int64_t i = all.rank(); i < count; i += all.size()) {
      const std::string result = f(i);
      own += bytes_of({static_cast<double>(result.size())}) + result;
    }
  } catch (...) {
    problem = std::current_exception();
    own = "-";
  }
  const std::vector<std::string> gathered = all.all_gather(own);
  if (problem) std::rethrow_exception(problem);
  std::vector<std::string> results(static_cast<size_t>(count));
  for (int64_t rank = 0; rank < all.size(); ++rank) {
    const std::string& of_rank = gathered[static_cast<size_t>(rank)];
    if (of_rank[0] == '-') throw PeerFailed();
    size_t at = 1;
    for (int64_t i = rank; i < count; i += all.size()) {
      const auto size = static_cast<size_t>(doubles_of(of_rank.substr(at, sizeof(double)))[0]);
      results[static_cast<size_t>(i)] = of_rank.substr(at + sizeof(double), size);
      at += sizeof(double) + size;
    }
  }
  return results;
}

}  // namespace runnel
