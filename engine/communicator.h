// The processes that train one model together (data parallelism), each on its part of every batch. A program that was
// started by itself is one process of one.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace runnel {

struct SumOptions {
  bool any_order = false;  // whatever is fastest, instead of a fixed tree
  bool bf16 = false;       // each sum of the tree is rounded to bfloat16, so that half the bytes are sent
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  int rank() const { return rank_; }
  int size() const { return size_; }
  int processes_on_host() const { return on_host_; }
  std::string name() const;  // "rank 3 on host n17"

  // All of the following are collective: every process calls them in the same order.

  // The bytes of one rank, in the memory of all.
  virtual void broadcast(void* /*data*/, size_t /*bytes*/, int /*from*/ = 0) {}
  // What each rank has given, in the order of the ranks.
  virtual std::vector<std::string> all_gather(const std::string& bytes) { return {bytes}; }
  // In double precision, in the order of the ranks.
  std::vector<double> sum(const std::vector<double>& values);

  // Starts to replace n numbers in host memory by their sums over all processes, with the same n everywhere. They are
  // added as a binary tree, neighbours first: (0 + 1) + (2 + 3). So if each rank's numbers are a tree over its parts of
  // a batch, the result is the tree over all parts, and its bytes do not depend on the number of processes.
  virtual void start_sum(float* /*x*/, int64_t /*n*/, SumOptions) {}
  // Goes on with the sums without waiting: messages move only while MPI is called. Not collective.
  virtual void progress() {}
  // Returns when all sums that were started are there.
  virtual void finish_sums() {}
  // What the sums have cost this process so far.
  struct Cost {
    double bytes_sent = 0, seconds_waited = 0;
  };
  Cost cost() const { return cost_; }

  // Tells whether all processes come here within some seconds: they have then failed alike, and can end in order.
  virtual bool all_end_together() { return true; }
  [[noreturn]] void end_all(int status);  // this process and all others

 protected:
  virtual void end_others(int /*status*/) {}
  int rank_ = 0, size_ = 1, on_host_ = 1;
  Cost cost_;
};

// Those of this program; one, until others are set.
Communicator& processes();
void set_processes(std::unique_ptr<Communicator> all);

// x = x + other in host memory, rounded to bfloat16 if told to: what start_sum does at each node of the tree.
void add_in_place(float* x, const float* other, int64_t n, bool bf16);

// Thrown where another process has thrown something in divided().
struct LeftByAnother {};

// f(i) for each i < count, each by one process; on all of them what it returned, in the order of i. What f throws is
// thrown when all others have done their share, and LeftByAnother by them.
std::vector<std::vector<double>> divided(int64_t count, const std::function<std::vector<double>(int64_t i)>& f);

}  // namespace runnel
