#include "apps/training/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

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

std::vector<std::vector<double>> map_over_ranks(int64_t count, const std::function<std::vector<double>(int64_t i)>& f) {
  Communicator& all = processes();
  // Each own result: how many numbers, the numbers.
  std::vector<double> own{1};
  std::exception_ptr problem;
  try {
    for (int64_t i = all.rank(); i < count; i += all.size()) {
      const std::vector<double> result = f(i);
      own.push_back(static_cast<double>(result.size()));
      own.insert(own.end(), result.begin(), result.end());
    }
  } catch (...) {
    problem = std::current_exception();
    own[0] = 0;
  }
  const std::vector<std::string> gathered = all.all_gather(bytes_of(own));
  if (problem) std::rethrow_exception(problem);
  std::vector<std::vector<double>> results(static_cast<size_t>(count));
  for (int64_t rank = 0; rank < all.size(); ++rank) {
    const std::vector<double> of_rank = doubles_of(gathered[static_cast<size_t>(rank)]);
    if (of_rank[0] == 0) throw PeerFailed();
    auto at = of_rank.begin() + 1;
    for (int64_t i = rank; i < count; i += all.size()) {
      const auto size = static_cast<int64_t>(*at++);
      results[static_cast<size_t>(i)].assign(at, at + size);
      at += size;
    }
  }
  return results;
}

}  // namespace runnel
