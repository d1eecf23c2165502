// The processes that train one model together (data parallelism), each on its part of every batch. A program that was
// started by itself is one process of one.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <type_traits>
#include <vector>

namespace runnel {

struct SumOptions {
  bool any_order = false;  // whatever is fastest, instead of a fixed tree
  bool bf16 = false;       // each sum of the tree is rounded to bfloat16, so that half the bytes are sent
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  virtual ~Communicator() = default;
  int rank() const { return rank_; }
  int size() const { return size_; }
  int processes_on_host() const { return on_host_; }
  int rank_on_host() const { return rank_on_host_; }
  std::string name() const;  // "rank 3 on host n17"
  // Whether mpirun, srun or torchrun has started them. One process does not know if srun did.
  bool are_launched() const { return launched_ || size_ > 1; }

  // All of the following are collective: every process calls them in the same order.

  // The bytes of one rank, in the host memory of all.
  virtual void broadcast(void* /*data*/, size_t /*bytes*/, int /*from*/ = 0) {}
  // The values of all ranks, in the order of the ranks.
  std::vector<std::string> all_gather(const std::string& bytes);
  // In double precision, added in the order of the ranks.
  std::vector<double> sum(const std::vector<double>& values);

  // From here on, numbers lie in the memory of the device on which the processes compute.
  //
  // Starts to replace n numbers by their sums over all processes, with the same n <= floats_at_once() everywhere. They
  // are added as a binary tree, neighbours first: (0 + 1) + (2 + 3). So if each rank's numbers are a tree over its
  // parts of a batch, the result is the tree over all parts, and its bytes do not depend on the number of processes.
  virtual void start_sum(float* /*x*/, int64_t /*n*/, SumOptions) {}
  // Goes on with sums, without waiting: MPI moves messages only while it is called. Not collective.
  virtual void progress() {}
  // The sums that were started are there when this returns; on CUDA, for kernels that are launched after this returns.
  virtual void finish() {}
  // Each x becomes that of rank `from` everywhere; on CUDA, for kernels that are launched after this returns.
  struct Copy {
    float* x;
    int64_t n;
    int from;
  };
  virtual void copy(const std::vector<Copy>& /*copies*/) {}
  int64_t floats_at_once() const { return floats_at_once_; }  // in one sum
  // Bytes sent by this process for sums, and seconds blocked in finish(); 0 on CUDA.
  struct Cost {
    double bytes_sent = 0, seconds_waited = 0;
  };
  Cost cost() const { return cost_; }

  // Of a process that a launcher has started: makes processes() all that it has started. Then, if they compute on GPUs:
  // makes them exchange everything by way of these. Both throw Error if that cannot be.
  virtual void connect() {}
  virtual void connect_gpus() {}
  // Whether they exchange nothing until their GPUs are connected.
  virtual bool needs_gpus() const { return false; }
  // True if every process calls this within seconds: all have failed alike, and can end in order.
  virtual bool all_end_together() { return true; }
  [[noreturn]] void end_all(int status);  // this process and all others

 protected:
  // The bytes of all ranks, one after another. All give as many.
  virtual std::string gather(const std::string& bytes) { return bytes; }
  virtual void end_others(int /*status*/) {}
  int rank_ = 0, size_ = 1, rank_on_host_ = 0, on_host_ = 1;
  bool launched_ = false;
  int64_t floats_at_once_ = 1 << 18;  // 1 MiB
  Cost cost_;
};

// The process group of this program; one process by default.
Communicator& processes();
void set_processes(std::shared_ptr<Communicator> all);

// Throws Error that names the first process whose values, or whose command, are not those of rank 0. Collective.
void check_that_all_agree(nlohmann::json values);
void set_own_command(const std::string& command);  // this process's command: "copy train"

// Thrown where another process has thrown something in map_over_ranks().
struct PeerFailed {};

// f(i) for each i < count, each by one process; on all of them the results, in the order of i. An exception of f is
// thrown when all others have done their share, and PeerFailed by them.
std::vector<std::string> bytes_over_ranks(int64_t count, const std::function<std::string(int64_t i)>& f);

// The same of vectors of numbers.
template <class F, class Numbers = std::invoke_result_t<F, int64_t>>
std::vector<Numbers> map_over_ranks(int64_t count, F f) {
  using Number = typename Numbers::value_type;
  const std::vector<std::string> all = bytes_over_ranks(count, [&](int64_t i) {
    const Numbers numbers = f(i);
    return std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number));
  });
  std::vector<Numbers> results;
  for (const std::string& bytes : all) {
    results.emplace_back(bytes.size() / sizeof(Number));
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(results.back().data()));
  }
  return results;
}

}  // namespace runnel
