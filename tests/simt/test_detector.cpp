// Mutation tests of the emulator: kernels with planted bugs, each in a child process, whose report must name the bug
// and the line of plants.cu that says "bug: <name>". A bug that only one build can detect is skipped in the others.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace {

#if RUNNEL_WITH_ADDRESS_SANITIZER
constexpr bool address_build = true, thread_build = false;
#elif RUNNEL_WITH_THREAD_SANITIZER
constexpr bool address_build = false, thread_build = true;
#else
constexpr bool address_build = false, thread_build = false;
#endif
#if defined(__clang__)
constexpr bool clang = true;
#else
constexpr bool clang = false;
#endif
constexpr bool knows_lines = address_build || thread_build;  // of every instruction; barriers are always named by line

struct Outcome {
  int status;  // exit status, or 128 + signal
  std::string text;
};

Outcome run(const std::string& name, const std::string& environment = "") {
  const std::string command =  // the seed is the test's, not that of the run of all tests
      "unset SIMT_SEED SIMT_MULTIPROCESSORS SIMT_SHARED; " + environment + " exec '" RUNNEL_PLANT "' " + name + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe);
  Outcome outcome{};
  char buffer[4096];
  while (const size_t n = fread(buffer, 1, sizeof buffer, pipe)) outcome.text.append(buffer, n);
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

bool contains(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

// "plants.cu:57", for the line that says "// bug: <name>".
std::string marked_line(const std::string& name) {
  std::ifstream file(RUNNEL_PLANTS);
  std::string line;
  for (int number = 1; std::getline(file, line); ++number)
    if (line.ends_with("// bug: " + name)) return "plants.cu:" + std::to_string(number);
  FAIL("no line of plants.cu has the bug " << name);
  return "";
}

void check_reported(const std::string& name, const std::string& words, const std::string& environment = "") {
  const Outcome outcome = run(name, environment);
  CAPTURE(outcome.text);
  CHECK(outcome.status != 0);
  CHECK(contains(outcome.text, words));
}

void check_reported_with_line(const std::string& name, const std::string& words, const std::string& environment = "") {
  const Outcome outcome = run(name, environment);
  CAPTURE(outcome.text);
  CHECK(outcome.status != 0);
  CHECK(contains(outcome.text, words));
  CHECK(contains(outcome.text, marked_line(name)));
}

void check_result(const std::string& name, const std::string& result, const std::string& environment = "") {
  const Outcome outcome = run(name, environment);
  CAPTURE(outcome.text);
  CHECK(outcome.status == 0);
  CHECK(outcome.text == "result " + result + "\n");
}

bool skipped(bool seen_here, const std::string& build) {
  if (!seen_here) MESSAGE("skipped: 1 test, only the build with -fsanitize=" << build << " sees this");
  return !seen_here;
}
bool skipped_but_for_thread() { return skipped(thread_build, "thread"); }
// clang does not check the address from which a struct is copied, and cannot tell padding.
bool skipped_for_clang() { return skipped(!clang, "thread,alignment by g++"); }
bool skipped_but_for_address() { return skipped(address_build, "address,undefined"); }

}  // namespace

// --- order between threads ---

TEST_CASE("detector: shared memory read without a barrier after the write") {
  if (skipped_but_for_thread()) return;
  check_reported_with_line("missing_syncthreads", "data race");
}

TEST_CASE("detector: lanes of a warp assumed to run in lockstep") {
  if (skipped_but_for_thread()) return;
  check_reported_with_line("missing_syncwarp", "data race");
}

TEST_CASE("detector: shared memory overwritten before all threads have read it") {
  if (skipped_but_for_thread()) return;
  check_reported_with_line("scratch_reused", "data race");
}

TEST_CASE("detector: race between two threads") {
  if (skipped_but_for_thread()) return;
  check_reported_with_line("race_between_threads", "data race");
}

TEST_CASE("detector: race between two blocks") {
  if (skipped_but_for_thread()) return;
  check_reported_with_line("race_between_blocks", "data race");
}

TEST_CASE("detector: an asynchronous copy read by other threads without a barrier") {
  if (skipped_but_for_thread()) return;
  check_reported_with_line("copy_without_barrier", "data race");
}

TEST_CASE("detector: ldmatrix reads what other threads wrote without a barrier") {
  if (skipped_but_for_thread()) return;
  check_reported_with_line("matrix_without_barrier", "data race");
}

TEST_CASE("detector: a barrier that only some threads reach") {
  check_reported_with_line("divergent_barrier", "return");
}

TEST_CASE("detector: two barriers, each for some of the threads") {
  check_reported_with_line("different_barriers", "threads of one block at different barriers");
}

TEST_CASE("detector: a shuffle after some lanes have returned") {
  check_reported_with_line("shuffle_after_return", "return");
}

// --- memory ---

TEST_CASE("detector: access past the end of one shared array") {
  if (skipped_but_for_address()) return;
  check_reported_with_line("shared_past_array", "byte 128 of array 0 of shared memory, which has 128 bytes");
}

TEST_CASE("detector: access past the end of all shared memory") {
  if (skipped_but_for_address()) return;
  check_reported_with_line("shared_past_all", "byte 128 of array 0 of shared memory, which has 128 bytes");
}

TEST_CASE("detector: a launch with less shared memory than the kernel takes") {
  const char* words = "the kernel takes 128 bytes of shared memory, its launch gave 64";
  if (knows_lines)
    check_reported_with_line("too_little_shared", words);
  else
    check_reported("too_little_shared", words);
}

TEST_CASE("detector: uninitialised shared memory is NaN, and arithmetic on it can be trapped") {
  check_result("uninitialised_shared", "nan");
  const char* words = "arithmetic on memory that nobody wrote";
  if (knows_lines)
    check_reported_with_line("uninitialised_shared", words, "SIMT_TRAP=1");
  else
    check_reported("uninitialised_shared", words, "SIMT_TRAP=1");
}

TEST_CASE("detector: access past the end of global memory") {
  if (skipped_but_for_address()) return;
  check_reported_with_line("global_past_end", "heap-buffer-overflow");
}

TEST_CASE("detector: a misaligned float4") {
  if (skipped_for_clang() || skipped(knows_lines, "thread,alignment")) return;
  check_reported_with_line("misaligned", "misaligned address");
}

TEST_CASE("detector: device memory used after free") {
  check_reported("argument_freed", "is no device memory");
  if (skipped_but_for_address()) return;
  check_reported_with_line("use_after_free", "heap-use-after-free");
  check_reported_with_line("freed_in_graph", "freed on its stream");
}

TEST_CASE("detector: a host pointer passed to a kernel") { check_reported("argument_of_host", "is no device memory"); }

TEST_CASE("detector: a host pointer inside a struct passed to a kernel") {
  if (skipped_for_clang()) return;
  for (const char* name : {"host_heap_in_struct", "host_stack_in_struct"}) {
    check_reported(name, "the pointer at byte 8 of argument 0, a struct, is no device memory");
    if (knows_lines) check_reported(name, "scaled_kernel");
  }
  check_result("control_struct", "right");
}

TEST_CASE("detector: device memory accessed by the host") {
  if (skipped_but_for_address()) return;
  check_reported_with_line("host_reads_device", "touched by the host");
}

// --- instructions of a warp ---

TEST_CASE("detector: lanes that meet in two inlined copies of one helper") {
  check_reported("inlined_twice", "but in two copies of it");
}

TEST_CASE("detector: lanes that meet in one helper, called in two branches") {
  const char* words = "by two calls";
  if (knows_lines)
    check_reported_with_line("called_twice", words);
  else
    check_reported("called_twice", words);
}

TEST_CASE("detector: an operand of a TF32 product that is not rounded") {
  check_reported("mma_unrounded", "is not rounded to TF32");
}

TEST_CASE("detector: rows of an operand that ldmatrix cannot read") {
  check_reported("matrix_in_global_memory", "ldmatrix: a row is not in shared memory");
  check_reported("misaligned_matrix", "ldmatrix: a row does not start at a multiple of 16 bytes");
}

// --- what is right on some devices only, or in one order of sums ---

TEST_CASE("detector: the seed draws the number of multiprocessors and the shared memory, unless they are given") {
  check_result("many_multiprocessors", "right");
  check_result("many_multiprocessors", "wrong", "SIMT_SEED=1");
  check_result("many_multiprocessors", "wrong", "SIMT_MULTIPROCESSORS=33");
  check_result("many_multiprocessors", "right", "SIMT_SEED=1 SIMT_MULTIPROCESSORS=32");
  check_result("much_shared_memory", "right");
  check_result("much_shared_memory", "wrong", "SIMT_SEED=1");
  check_result("much_shared_memory", "wrong", "SIMT_SHARED=227");
}

TEST_CASE("detector: exponentials and logarithms assumed exact to the last place") {
  check_result("exact_functions", "right");
  check_result("exact_functions", "wrong", "SIMT_SEED=1");
  check_result("exact_log1p", "right");
  check_result("exact_log1p", "wrong", "SIMT_SEED=1");
}

TEST_CASE("detector: a matrix product assumed to add in one order") {
  check_result("order_of_k", "right");
  check_result("order_of_k", "wrong", "SIMT_SEED=1");
}

TEST_CASE("detector: cuBLAS' workspace in use, or smaller than an algorithm needs") {
  check_result("workspace_in_use", "nan");
  check_reported("small_workspace", "64 bytes of workspace, but its algorithm was chosen for 128");
}

TEST_CASE("detector: a matrix that starts elsewhere than its algorithm expects") {
  check_reported("misaligned_operand", "operand 2 of a matrix product does not start at a multiple of 32 bytes");
}

TEST_CASE("detector: a graph that copies from memory of the host, which may be gone when it is launched") {
  check_reported("captured_copy_from_host", "end: operation failed due to a previous error during capture");
}

TEST_CASE("detector: a stream that does not wait for another") {
  check_result("stream_without_wait", "wrong");
  check_result("stream_without_wait", "right", "SIMT_SEED=1");
  check_reported("captured_stream_without_wait", "end: capturing stream has unjoined work");
}

// --- asynchronous copies ---

TEST_CASE("detector: an asynchronous copy read before the wait") {
  if (address_build)
    check_reported_with_line("copy_without_wait", "has not waited for its asynchronous copy");
  else
    check_result("copy_without_wait", "nan");
}

TEST_CASE("detector: an asynchronous copy never waited for") {
  check_reported("copy_never_waited", "returns with asynchronous copies that it never waited for");
}

TEST_CASE("detector: an asynchronous copy past the end of its array") {
  if (skipped_but_for_address()) return;
  check_reported_with_line("copy_past_array", "byte 496 of array 0 of shared memory, which has 496 bytes");
}

// --- the runtime ---

TEST_CASE("detector: errors of the runtime") {
  check_reported("copy_wrong_way", "cudaMemcpyAsync: invalid argument");
  check_reported("control_sums", "cudaMallocAsync: out of memory", "SIMT_MEMORY=700");
  check_reported("control_sums", "no CUDA-capable device is detected", "SIMT_NO_DEVICE=1");
  check_reported("second_thread", "CUDA is called from a second thread");
}

// --- several processes ---

#if RUNNEL_WITH_NCCL
TEST_CASE("detector: a message that one side has captured in a graph, and the other has not") {
  check_reported("captured_by_sender",
                 "NCCL: rank 1 sends in a graph what rank 0 receives outside of a graph; all ranks must capture an "
                 "operation, or none");
  check_reported("captured_by_receiver", "NCCL: rank 1 sends outside of a graph what rank 0 receives in a graph");
}

TEST_CASE("detector: graphs of different captures that send and receive the same message") {
  check_reported("captured_again",
                 "NCCL: rank 1 sends operation 1 to rank 0, which receives operation 0; all ranks must launch the "
                 "graphs of one capture");
}

TEST_CASE("detector: messages that both sides have captured, or both have not, are not reported") {
  check_result("control_message", "right");
  check_result("control_message_in_graph", "right");
}
#endif

// --- nothing to report ---

TEST_CASE("detector: correct barriers, shuffles and sums are not reported") { check_result("control_sums", "right"); }
TEST_CASE("detector: correct asynchronous copies and tensor-core products are not reported") {
  check_result("control_mma", "right");
}
TEST_CASE("detector: a correct graph with memory of its own is not reported") {
  check_result("control_graph", "right");
}
TEST_CASE("detector: two streams that wait for each other where they must are not reported") {
  for (const char* seed : {"", "SIMT_SEED=1", "SIMT_SEED=2", "SIMT_SEED=3"}) {
    check_result("control_streams", "right", seed);
    check_result("control_streams_in_graph", "right", seed);
  }
}
TEST_CASE("detector: correct matrix products are not reported") { check_result("control_cublas", "right"); }
