#include "apps/training/sharded_optimizer.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "apps/training/communicator.h"
#include "ops/shapes.h"

namespace runnel {
namespace {

// The largest first, each to the process that has least so far.
std::vector<int> owners_of(const Parameters& parameters) {
  std::vector<size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return parameters[a].tensor.size() > parameters[b].tensor.size(); });
  std::vector<int64_t> sizes(static_cast<size_t>(processes().size()));
  std::vector<int> owners(parameters.size());
  for (const size_t i : order) {
    const auto least = std::min_element(sizes.begin(), sizes.end());
    owners[i] = static_cast<int>(least - sizes.begin());
    *least += parameters[i].tensor.size();
  }
  return owners;
}

// The numbers of those of this process.
std::vector<int32_t> own_rows(size_t count, const std::vector<int>& owners) {
  std::vector<int32_t> rows;
  for (size_t i = 0; i < count; ++i)
    if (owners.empty() || owners[i] == processes().rank()) rows.push_back(static_cast<int32_t>(i));
  return rows;
}

Parameters chosen(const Parameters& all, const std::vector<int32_t>& rows) {
  Parameters some;
  for (const int32_t row : rows) some.push_back(all[static_cast<size_t>(row)]);
  return some;
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(const Parameters& parameters, AdamOptions options, bool muon, bool sharded)
    : parameters_(parameters),
      all_(Optimizer::ordered(parameters, muon)),
      muon_(muon),
      owners_(sharded && processes().size() > 1 ? owners_of(all_) : std::vector<int>()),
      own_(chosen(all_, own_rows(all_.size(), owners_)), options, muon) {
  if (owners_.empty()) return;
  std::vector<int32_t> rows = own_rows(all_.size(), owners_);
  rows.push_back(static_cast<int32_t>(all_.size()));
  rows_ = Indices(Shape{std::ssize(rows)}, rows).to(all_[0].tensor.device());
}

void ShardedOptimizer::update(const Gradients& gradients, const Tensor& squares) {
  own_.update(gradients, owners_.empty() ? squares : gather(squares, rows_));
  if (owners_.empty()) return;
  std::vector<Communicator::Copy> copies;
  for (size_t i = 0; i < all_.size(); ++i) copies.push_back({all_[i].tensor.data(), all_[i].tensor.size(), owners_[i]});
  processes().copy(copies);
}

Parameters ShardedOptimizer::state() const {
  Parameters own = own_.state();
  if (owners_.empty()) return own;
  std::map<std::string, int> owners;
  for (size_t i = 0; i < all_.size(); ++i)
    for (const char* moment : {"optimizer.m.", "optimizer.v."}) owners[moment + all_[i].name] = owners_[i];
  Parameters all = empty_state();
  auto next = own.begin();
  for (auto& [name, tensor] : all) {
    if (next != own.end() && next->name == name) tensor = (next++)->tensor.to(Device::cpu);
    std::vector<float> values = tensor.to_vector();
    processes().broadcast(values.data(), values.size() * sizeof(float), owners.at(name));
    if (owners.at(name) != processes().rank()) assign(tensor, Tensor(tensor.shape(), values));
  }
  return all;
}

void ShardedOptimizer::set_state(const Parameters& state) {
  Parameters own = own_.state();
  auto next = own.begin();
  for (const auto& [name, tensor] : state)
    if (next != own.end() && next->name == name) assign((next++)->tensor, tensor);
}

}  // namespace runnel
