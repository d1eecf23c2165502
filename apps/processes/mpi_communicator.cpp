// Processes that MPI connects. All calls of MPI are made by the main thread: sums of gradients are non-blocking, and
// move on whenever the backward pass has completed another gradient.
#include "apps/processes/mpi_communicator.h"

#if RUNNEL_WITH_MPI
#define OMPI_SKIP_MPICXX 1  // the C interface only
#define MPICH_SKIP_MPICXX 1
#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>
#endif

#include "apps/processes/nccl_communicator.h"
#include "apps/processes/tree_sum.h"
#include "engine/check.h"
#include "engine/device.h"

namespace runnel {

#if RUNNEL_WITH_MPI
namespace {

// A collective operation that has begun.
class Operation {
 public:
  virtual ~Operation() = default;
  // Goes as far as messages have come; is it done?
  virtual bool advance() = 0;
  // Waits for the next message.
  virtual void wait() = 0;
};

class TreeSum : public Operation {
 public:
  TreeSum(float* x, int64_t n, bool bf16, int rank, int size, int tag)
      : x_(x), bf16_(bf16), tag_(tag), steps_(tree_exchanges(rank, size, n)), step_(steps_.begin()) {
    exchange();
  }

  bool advance() override {
    int done = 0;
    while (step_ != steps_.end() && (MPI_Testall(2, requests_.data(), &done, MPI_STATUSES_IGNORE), done)) {
      const auto [first, count] = step_->received;
      if (bf16_)
        for (int64_t i = 0; i < count; ++i) incoming_[i] = std::bit_cast<float>(uint32_t{upper_incoming_[i]} << 16);
      if (step_->adds)
        add_in_place(x_ + first, incoming_.data(), count, bf16_);
      else
        std::copy_n(incoming_.data(), count, x_ + first);
      if (++step_ != steps_.end()) exchange();
    }
    return step_ == steps_.end();
  }
  void wait() override { MPI_Waitall(2, requests_.data(), MPI_STATUSES_IGNORE); }

 private:
  void exchange() {
    const auto [first, count] = step_->sent;
    incoming_.resize(static_cast<size_t>(step_->received.count));
    const void* out = x_ + first;
    void* in = incoming_.data();
    if (bf16_) {
      upper_incoming_.resize(incoming_.size());
      upper_.resize(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i)
        upper_[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(x_[first + i]) >> 16);
      out = upper_.data();
      in = upper_incoming_.data();
    }
    const MPI_Datatype type = bf16_ ? MPI_UINT16_T : MPI_FLOAT;
    MPI_Irecv(in, static_cast<int>(incoming_.size()), type, step_->neighbour, tag_, MPI_COMM_WORLD, &requests_[0]);
    MPI_Isend(out, static_cast<int>(count), type, step_->neighbour, tag_, MPI_COMM_WORLD, &requests_[1]);
  }

  float* x_;
  bool bf16_;
  int tag_;
  std::vector<Exchange> steps_;
  std::vector<Exchange>::const_iterator step_;
  std::vector<float> incoming_;
  std::vector<uint16_t> upper_, upper_incoming_;
  std::array<MPI_Request, 2> requests_{};
};

// By MPI's own collective operations.
class LibraryOperation : public Operation {
 public:
  explicit LibraryOperation(MPI_Request request) : request_(request) {}
  bool advance() override {
    int done = 0;
    MPI_Test(&request_, &done, MPI_STATUS_IGNORE);
    return done;
  }
  void wait() override { MPI_Wait(&request_, MPI_STATUS_IGNORE); }

 private:
  MPI_Request request_;
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
    MPI_Comm_rank(host, &rank_on_host_);
    MPI_Comm_size(host, &on_host_);
    MPI_Comm_free(&host);
  }
  ~MpiCommunicator() override { MPI_Finalize(); }

  void connect_gpus() override {
    if constexpr (with_cuda) set_processes(cuda::connect_gpus(shared_from_this()));
  }

  void broadcast(void* data, size_t bytes, int from) override {
    constexpr size_t at_once = size_t{1} << 30;  // MPI counts in int
    for (size_t done = 0; done < bytes; done += at_once)
      MPI_Bcast(static_cast<char*>(data) + done, static_cast<int>(std::min(at_once, bytes - done)), MPI_BYTE, from,
                MPI_COMM_WORLD);
  }

  void start_sum(float* x, int64_t n, SumOptions options) override {
    constexpr int tags = 1 << 14;  // MPI promises twice as many
    const double number_bytes = options.bf16 ? 2 : 4;
    cost_.bytes_sent += number_bytes * 2 * static_cast<double>(n) * (1 - 1.0 / size_);
    if (options.any_order) {
      MPI_Request request;
      MPI_Iallreduce(MPI_IN_PLACE, x, static_cast<int>(n), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
      started_.push_back(std::make_unique<LibraryOperation>(request));
    } else {
      started_.push_back(
          std::make_unique<TreeSum>(x, n, options.bf16, rank_, size_, static_cast<int>(std::ssize(started_) % tags)));
    }
  }
  void progress() override {
    for (size_t i = finished_; i < started_.size(); ++i) {
      const bool is_done = started_[i]->advance();
      if (is_done && i == finished_) ++finished_;
    }
  }
  void finish() override {
    const double begun = MPI_Wtime();
    for (progress(); finished_ < started_.size(); progress()) started_[finished_]->wait();
    cost_.seconds_waited += MPI_Wtime() - begun;
    started_.clear();
    finished_ = 0;
  }

  void copy(const std::vector<Copy>& copies) override {
    for (const auto& [x, n, from] : copies) {
      MPI_Request request;
      MPI_Ibcast(x, static_cast<int>(n), MPI_FLOAT, from, MPI_COMM_WORLD, &request);
      started_.push_back(std::make_unique<LibraryOperation>(request));
    }
    finish();
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
  std::string gather(const std::string& bytes) override {
    std::string all(bytes.size() * static_cast<size_t>(size_), '\0');
    const int count = static_cast<int>(bytes.size());
    MPI_Allgather(bytes.data(), count, MPI_BYTE, all.data(), count, MPI_BYTE, MPI_COMM_WORLD);
    return all;
  }
  void end_others(int status) override { MPI_Abort(MPI_COMM_WORLD, status); }

 private:
  MPI_Comm at_the_end_{};
  std::vector<std::unique_ptr<Operation>> started_;
  size_t finished_ = 0;  // so many from the front are
};

}  // namespace

std::shared_ptr<Communicator> connect_by_mpi(int64_t count, const std::string& variable) {
  std::promise<void> connected;
  // MPI itself waits for ever. Rank 0 speaks, if it is there.
  std::thread guard([&, rank = processes().rank(), name = processes().name()] {
    const std::chrono::seconds most(rank == 0 ? 20 : 22);
    if (connected.get_future().wait_for(most) == std::future_status::ready) return;
    const std::string sentence = fmt::format(
        "runnel: {}: {}={} says that there are so many processes, but after {} s not all of them have come; all "
        "must be started with the same command\n",
        name, variable, count, most.count());
    // Not by stdio: the output of ranks other than 0 is dropped.
    std::ignore = write(STDERR_FILENO, sentence.data(), sentence.size());
    _exit(1);
  });
  auto all = std::make_shared<MpiCommunicator>();
  connected.set_value();
  guard.join();
  check(all->size() == count, variable, "=", count, " says that this is one of so many processes, but MPI connects ",
        all->size(), ": the launcher must belong to the MPI that this program was built with, ", mpi_version(),
        "; to compute in one process, unset ", variable);
  return all;
}

std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int size = 0;
  MPI_Get_library_version(text.data(), &size);
  const std::string all(text.data());
  return all.substr(0, all.find_first_of(",\n"));
}

#else

std::shared_ptr<Communicator> connect_by_mpi(int64_t count, const std::string& variable) {
  fail(variable, "=", count,
       " says that this is one of so many processes, but this build has no MPI: install libopenmpi-dev (or "
       "libmpich-dev) and build again; to compute in one process, unset ",
       variable);
}

std::string mpi_version() { return "not in this build (libopenmpi-dev, or libmpich-dev)"; }

#endif

}  // namespace runnel
