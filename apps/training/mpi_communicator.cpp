// Processes that MPI connects. All calls of MPI are made by the main thread: sums of gradients are non-blocking, and
// move on whenever the backward pass has completed another gradient.
#include "apps/training/mpi_communicator.h"

#if RUNNEL_WITH_MPI
#define OMPI_SKIP_MPICXX 1  // the C interface only
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>
#endif
#include <cstdlib>

#include "engine/check.h"
#include "engine/communicator.h"

namespace runnel {

#if RUNNEL_WITH_MPI
namespace {

// A sum over all processes that is under way.
class Sum {
 public:
  virtual ~Sum() = default;
  // Goes as far as messages have come; is the sum there?
  virtual bool advance() = 0;
  // Waits for the next message.
  virtual void wait() = 0;
};

// Recursive halving, then recursive doubling (Thakur, Rabenseifner and Gropp 2005). In step s < k of k =
// log2(processes), a process and its neighbour at distance 2^s each add one half of the range that both hold; then they
// give the sums to each other, from the last step back to the first. Each process sends 2 n (1 - 2^-k) numbers.
class TreeSum : public Sum {
 public:
  TreeSum(float* x, int64_t n, bool bf16, int rank, int steps, int tag)
      : x_(x), bf16_(bf16), rank_(rank), steps_(steps), tag_(tag), ranges_{{0, n}} {
    exchange();
  }

  bool advance() override {
    int done = 0;
    while (step_ < 2 * steps_ && (MPI_Testall(2, requests_.data(), &done, MPI_STATUSES_IGNORE), done)) {
      const int64_t count = received_.second - received_.first;
      float* const at = x_ + received_.first;
      if (bf16_)
        for (int64_t i = 0; i < count; ++i) incoming_[i] = std::bit_cast<float>(uint32_t{upper_incoming_[i]} << 16);
      if (step_ >= steps_)
        std::copy_n(incoming_.data(), count, at);
      else
        add_in_place(at, incoming_.data(), count, bf16_);
      if (++step_ < 2 * steps_) exchange();
    }
    return step_ == 2 * steps_;
  }
  void wait() override { MPI_Waitall(2, requests_.data(), MPI_STATUSES_IGNORE); }

 private:
  using Range = std::pair<int64_t, int64_t>;

  void exchange() {
    const bool halves = step_ < steps_;
    const int bit = halves ? step_ : 2 * steps_ - 1 - step_;
    const auto [begin, end] = ranges_[static_cast<size_t>(bit)];
    Range own{begin, (begin + end) / 2}, other{own.second, end};
    if (rank_ >> bit & 1) std::swap(own, other);
    if (halves) ranges_.push_back(own);
    const Range sent = halves ? other : own;
    received_ = halves ? own : other;
    const auto count = static_cast<size_t>(sent.second - sent.first);
    incoming_.resize(static_cast<size_t>(received_.second - received_.first));
    const void* out = x_ + sent.first;
    void* in = incoming_.data();
    if (bf16_) {
      upper_incoming_.resize(incoming_.size());
      upper_.resize(count);
      for (size_t i = 0; i < count; ++i)
        upper_[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(x_[sent.first + static_cast<int64_t>(i)]) >> 16);
      out = upper_.data();
      in = upper_incoming_.data();
    }
    const int neighbour = rank_ ^ 1 << bit;
    const MPI_Datatype type = bf16_ ? MPI_UINT16_T : MPI_FLOAT;
    MPI_Irecv(in, static_cast<int>(incoming_.size()), type, neighbour, tag_, MPI_COMM_WORLD, &requests_[0]);
    MPI_Isend(out, static_cast<int>(count), type, neighbour, tag_, MPI_COMM_WORLD, &requests_[1]);
  }

  float* x_;
  bool bf16_;
  int rank_, steps_, tag_;
  int step_ = 0;
  std::vector<Range> ranges_;  // what this process holds before each halving, and after the last
  Range received_;
  std::vector<float> incoming_;
  std::vector<uint16_t> upper_, upper_incoming_;
  std::array<MPI_Request, 2> requests_{};
};

// In the order that MPI chooses.
class LibrarySum : public Sum {
 public:
  LibrarySum(float* x, int64_t n) {
    MPI_Iallreduce(MPI_IN_PLACE, x, static_cast<int>(n), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request_);
  }
  bool advance() override {
    int done = 0;
    MPI_Test(&request_, &done, MPI_STATUS_IGNORE);
    return done;
  }
  void wait() override { MPI_Wait(&request_, MPI_STATUS_IGNORE); }

 private:
  MPI_Request request_{};
};

class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator() {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Comm_dup(MPI_COMM_WORLD, &at_the_end_);
    MPI_Comm host;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host);
    MPI_Comm_size(host, &on_host_);
    MPI_Comm_free(&host);
  }
  ~MpiCommunicator() override { MPI_Finalize(); }

  void broadcast(void* data, size_t bytes, int from) override {
    constexpr size_t at_once = size_t{1} << 30;  // MPI counts in int
    for (size_t done = 0; done < bytes; done += at_once)
      MPI_Bcast(static_cast<char*>(data) + done, static_cast<int>(std::min(at_once, bytes - done)), MPI_BYTE, from,
                MPI_COMM_WORLD);
  }

  std::vector<std::string> all_gather(const std::string& bytes) override {
    const int own = static_cast<int>(bytes.size());
    std::vector<int> sizes(static_cast<size_t>(size_)), begins(sizes.size());
    MPI_Allgather(&own, 1, MPI_INT, sizes.data(), 1, MPI_INT, MPI_COMM_WORLD);
    int total = 0;
    for (size_t i = 0; i < sizes.size(); ++i) begins[i] = std::exchange(total, total + sizes[i]);
    std::string all(static_cast<size_t>(total), '\0');
    MPI_Allgatherv(bytes.data(), own, MPI_BYTE, all.data(), sizes.data(), begins.data(), MPI_BYTE, MPI_COMM_WORLD);
    std::vector<std::string> each;
    for (size_t i = 0; i < sizes.size(); ++i)
      each.push_back(all.substr(static_cast<size_t>(begins[i]), static_cast<size_t>(sizes[i])));
    return each;
  }

  void start_sum(float* x, int64_t n, SumOptions options) override {
    constexpr int tags = 1 << 14;  // MPI promises twice as many
    const double number_bytes = options.bf16 ? 2 : 4;
    cost_.bytes_sent += number_bytes * 2 * static_cast<double>(n) * (1 - 1.0 / size_);
    if (options.any_order)
      sums_.push_back(std::make_unique<LibrarySum>(x, n));
    else
      sums_.push_back(std::make_unique<TreeSum>(x, n, options.bf16, rank_,
                                                std::countr_zero(static_cast<unsigned>(size_)),
                                                static_cast<int>(std::ssize(sums_) % tags)));
  }
  void progress() override {
    for (size_t i = finished_; i < sums_.size(); ++i) {
      const bool is_done = sums_[i]->advance();
      if (is_done && i == finished_) ++finished_;
    }
  }
  void finish_sums() override {
    const double begun = MPI_Wtime();
    for (progress(); finished_ < sums_.size(); progress()) sums_[finished_]->wait();
    cost_.seconds_waited += MPI_Wtime() - begun;
    sums_.clear();
    finished_ = 0;
  }

  bool all_end_together() override {
    MPI_Request request;
    MPI_Ibarrier(at_the_end_, &request);
    for (int i = 0, done = 0; i < 300; ++i) {
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (done) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

 protected:
  void end_others(int status) override { MPI_Abort(MPI_COMM_WORLD, status); }

 private:
  MPI_Comm at_the_end_{};
  std::vector<std::unique_ptr<Sum>> sums_;  // of this update
  size_t finished_ = 0;                     // so many from the front are
};

}  // namespace

std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int size = 0;
  MPI_Get_library_version(text.data(), &size);
  const std::string all(text.data());
  return all.substr(0, all.find_first_of(",\n"));
}

#else

std::string mpi_version() { return "not in this build (libopenmpi-dev, or libmpich-dev)"; }

#endif

void connect_processes() {
  // How many processes mpirun (Open MPI's, MPICH's) or srun says that it has started.
  int64_t count = 1;
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (const char* const value = std::getenv(variable)) count = std::max(count, int64_t{std::atoll(value)});
  if (count == 1) return;
#if RUNNEL_WITH_MPI
  set_processes(std::make_unique<MpiCommunicator>());
  const int size = processes().size();
  check(size == count, "started as one of ", count, " processes, but MPI connects ", size,
        ": the launcher must belong to the MPI that this program was built with, ", mpi_version());
  check(std::has_single_bit(static_cast<unsigned>(size)), "started as ", size,
        " processes: their number must be a power of two");
#else
  fail("started as one of ", count,
       " processes, but this build has no MPI: install libopenmpi-dev (or libmpich-dev) and build again");
#endif
}

}  // namespace runnel
