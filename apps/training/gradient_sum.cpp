#include "apps/training/gradient_sum.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "apps/training/communicator.h"
#include "engine/accumulate.h"
#include "engine/check.h"

namespace runnel {
namespace {

constexpr int64_t floats_of_line = 16;  // of the cache

}  // namespace

void GradientSum::begin(int64_t parts) {
  parts_ = parts;
  part_ = 0;
  sent_ = 0;
}

void GradientSum::lay_out(const Finished& gradients, const Tensor& loss) {
  int64_t end = 0;
  const auto place = [&](uint64_t leaf, const Shape& shape) {
    places_.push_back(
        {leaf, shape, end, end + (shape.size() + floats_of_line - 1) / floats_of_line * floats_of_line, {}});
    end = places_.back().end;
  };
  for (const auto& [leaf, gradient] : gradients) place(leaf, gradient.shape());
  place(loss.id(), loss.shape());
}

void GradientSum::add(Tape& tape, const Tensor& loss) {
  if (parts_ == 1 && processes().size() == 1 && !options_.bf16) {  // nothing to add
    sole_part_ = {loss, tape.backward(loss)};
    return;
  }
  if (places_.empty()) {
    Finished gradients;
    tape.backward(loss, [&](uint64_t leaf, Tensor gradient) { gradients.emplace_back(leaf, std::move(gradient)); });
    lay_out(gradients, loss);
    auto place = places_.begin();
    for (auto& [leaf, gradient] : gradients) add_to(*place++, std::move(gradient));
  } else {
    auto place = places_.begin();
    tape.backward(loss, [&](uint64_t leaf, Tensor gradient) {
      check(place->leaf == leaf, "the parts of a batch do not all depend on the same parameters");
      add_to(*place++, std::move(gradient));
    });
    check(place + 1 == places_.end(), "the parts of a batch do not all depend on the same parameters");
  }
  add_to(places_.back(), loss);
  ++part_;
}

// Part 0 is kept; adding part 1 to it gives level 1. Part 2 is kept; adding part 3 to it, and the sum to level 1, gives
// level 2. And so on: a part goes up as many levels as its number ends in binary digits 1. The last part is added to
// whatever there is.
void GradientSum::add_to(Place& place, Tensor numbers) {
  const auto n = static_cast<uint64_t>(part_);
  const bool is_last = part_ + 1 == parts_;
  const int top = is_last ? std::bit_width(n) : std::countr_one(n);
  const Device device = numbers.device();
  const int64_t count = numbers.size();
  const bool bf16 = options_.bf16 && &place != &places_.back();  // the loss is exact
  if (bf16) {
    Tensor rounded(numbers.shape(), device);
    accumulate_bf16(device, rounded.data(), numbers.data(), nullptr, count);
    numbers = rounded;
  }
  if (top == 0 && !is_last) {
    place.pending = std::move(numbers);
    return;
  }
  if (std::ssize(levels_) <= top) levels_.resize(static_cast<size_t>(top) + 1);
  Tensor& level = levels_[static_cast<size_t>(top)];
  if (!level) level = Tensor::full({places_.back().end}, 0, device);
  float* const to = level.data() + place.first;
  const float* right = numbers.data();
  for (int i = 0; i < top; ++i) {
    if ((n >> i & 1) == 0) continue;
    const float* const left = i == 0 ? place.pending.data() : levels_[static_cast<size_t>(i)].data() + place.first;
    (bf16 ? accumulate_bf16 : accumulate)(device, to, left, right, count);
    right = to;
  }
  place.pending = {};
  if (n == 0) copy(to, device, right, device, static_cast<size_t>(count) * sizeof(float));  // there is no other
  if (is_last) send_until(place);
}

void GradientSum::send_until(const Place& place) {
  float* const sum = levels_[static_cast<size_t>(std::bit_width(static_cast<uint64_t>(part_)))].data();
  const Place& loss = places_.back();
  const bool is_loss = &place == &loss;
  const auto send = [&](int64_t end, SumOptions options) {
    processes().start_sum(sum + sent_, end - sent_, options);
    sent_ = end;
  };
  const int64_t at_once = processes().floats_at_once();
  while (place.end - sent_ >= at_once) send(sent_ + at_once, options_);
  if (is_loss && sent_ < loss.first) send(loss.first, options_);
  if (is_loss) send(loss.end, {});
  processes().progress();
}

GradientSum::Result GradientSum::finish() {
  if (sole_part_.loss) return std::exchange(sole_part_, {});
  processes().finish();
  const Tensor& sum = levels_[static_cast<size_t>(std::bit_width(static_cast<uint64_t>(parts_ - 1)))];
  Result result;
  for (const Place& place : places_) result.gradients.by_id[place.leaf] = sum.part(place.first, place.shape);
  result.loss = result.gradients.by_id.extract(places_.back().leaf).mapped();
  return result;
}

}  // namespace runnel
