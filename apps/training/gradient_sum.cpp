#include "apps/training/gradient_sum.h"

#include <atomic>
#include <bit>
#include <utility>

#include "engine/accumulate.h"
#include "engine/check.h"

namespace runnel {
namespace {

constexpr int64_t floats_of_line = 16;  // of the cache

// In place, unless other tensors have the storage of both.
Tensor sum_of(Tensor a, Tensor b, bool bf16) {
  Tensor sum = !a.is_shared() ? a : !b.is_shared() ? b : Tensor(a.shape(), a.device());
  std::atomic_thread_fence(std::memory_order_acquire);  // the last other owner, just gone, may have read that storage
  (bf16 ? accumulate_bf16 : accumulate)(a.device(), sum.data(), a.data(), b.data(), a.size());
  return sum;
}

}  // namespace

GradientSum::GradientSum(const Parameters& parameters, SumOptions options) : options_(options) {
  for (auto p = parameters.rbegin(); p != parameters.rend(); ++p)
    places_.push_back({p->name, p->tensor.id(), p->tensor.shape(), 0, 0, {}, {}});
  places_.push_back({"loss", loss_place, Shape{}, 0, 0, {}, {}});
  int64_t end = 0;
  for (Place& place : places_) {
    place_of_[place.leaf] = static_cast<size_t>(&place - places_.data());
    place.first = end;
    place.end = end += (place.shape.size() + floats_of_line - 1) / floats_of_line * floats_of_line;
  }
}

void GradientSum::begin(int64_t parts) {
  parts_ = parts;
  for (Place& place : places_) {
    place.waiting.clear();
    place.sum = {};
  }
  gathered_ = 0;
  sent_ = 0;
}

// Node n of the tree is the sum of nodes 2n and 2n + 1; the root is node 1, part i is node `leaves + i`. Whoever brings
// the second of two sums adds them and goes on with the result.
void GradientSum::add(int64_t part, uint64_t leaf, Tensor numbers) {
  const auto found = place_of_.find(leaf);
  check(found != place_of_.end(), "the gradient of a tensor ", numbers.shape(), " that is not among the parameters");
  Place& place = places_[found->second];
  const bool bf16 = options_.bf16 && leaf != loss_place;  // the loss is exact
  if (bf16) {
    Tensor rounded(numbers.shape(), numbers.device());
    accumulate_bf16(numbers.device(), rounded.data(), numbers.data(), nullptr, numbers.size());
    numbers = rounded;
  }
  const auto count = static_cast<uint64_t>(parts_), leaves = std::bit_ceil(count);
  for (uint64_t node = leaves + static_cast<uint64_t>(part); node > 1; node /= 2) {
    const uint64_t other = node ^ 1;
    const uint64_t first_leaf = other << (std::bit_width(leaves) - std::bit_width(other));
    if (first_leaf >= leaves + count) continue;  // there are no such parts
    Tensor waiting;
    {
      const std::lock_guard lock(mutex_);
      auto sum = place.waiting.extract(other);
      if (!sum) {
        place.waiting[node] = std::move(numbers);
        return;
      }
      waiting = std::move(sum.mapped());
    }
    numbers = sum_of(std::move(waiting), std::move(numbers), bf16);
  }
  const std::lock_guard lock(mutex_);
  place.sum = std::move(numbers);
}

void GradientSum::send() {
  if (processes().size() == 1) return;
  const int64_t at_once = processes().floats_at_once();
  const auto start = [&](int64_t end, SumOptions options) {
    processes().start_sum(sums_.data() + sent_, end - sent_, options);
    sent_ = end;
  };
  for (; gathered_ < places_.size(); ++gathered_) {
    Place& place = places_[gathered_];
    {
      const std::lock_guard lock(mutex_);
      if (!place.sum) break;
    }
    if (!sums_) sums_ = Tensor::full(Shape{places_.back().end}, 0, place.sum.device());
    Tensor sum = sums_.part(place.first, place.shape);
    assign(sum, place.sum);
    place.sum = std::move(sum);
    if (place.leaf != loss_place) {
      while (place.end - sent_ >= at_once) start(sent_ + at_once, options_);
    } else {
      if (sent_ < place.first) start(place.first, options_);
      start(place.end, {});  // exactly, whatever the options
    }
  }
  processes().progress();
}

GradientSum::Result GradientSum::finish() {
  for (const Place& place : places_)
    check(static_cast<bool>(place.sum), "there is no gradient of ", place.name,
          ": the loss of a part of the batch does not depend on it");
  if (processes().size() > 1) {  // else nothing was started, and nothing can be waited for
    send();
    processes().finish();
  }
  Result result;
  for (Place& place : places_) result.gradients.by_id[place.leaf] = std::move(place.sum);
  result.loss = result.gradients.by_id.extract(loss_place).mapped();
  return result;
}

}  // namespace runnel
