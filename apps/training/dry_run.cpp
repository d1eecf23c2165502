#include "apps/training/dry_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "apps/cli/terminal.h"
#include "apps/training/communicator.h"
#include "apps/training/metrics.h"
#include "engine/check.h"
#include "engine/host.h"
#include "engine/memory.h"
#include "engine/timing.h"

namespace runnel {
namespace {

// A run of one update.
struct Trial {
  const Task& task;
  const int64_t whole;  // sequences at a time
  Updater updater;

  // The first update; how many tokens it read.
  int64_t update(int64_t batch, int64_t part) {
    const Updater::Result done = updater.update(0, own_slices(task, 0, batch, part));
    if (!done.is_finite) fail("step 1: ", updater.first_non_finite(), "; a run with a lower --lr may get further");
    return done.tokens;
  }
};

// The most bytes that tensors take during an update, on top of parameters and moments. Whole batches may not fit, but
// two small ones say what they take: where activations outweigh the gradients of the parameters in both, bytes are
// linear in the number of sequences computed at a time.
double update_bytes(Trial& trial, double parameter_bytes, Device device, int64_t batch) {
  const double enough = 16 * parameter_bytes;
  const int64_t before = memory_use(device).live, whole = trial.whole, parts = (batch + whole - 1) / whole;
  const auto peak = [&](int64_t part) {
    reset_peak(device);
    trial.update(parts * part, part);  // as many parts as there will be
    return static_cast<double>(memory_use(device).peak - before);
  };
  int64_t part = 1;
  double bytes = peak(part), half = 0;
  while (part < whole && half < enough) {
    half = bytes;
    part = std::min(2 * part, whole);
    bytes = peak(part);
  }
  if (part == whole) return bytes;
  return bytes + static_cast<double>(whole - part) * (bytes - half) / static_cast<double>(part / 2);
}

}  // namespace

void dry_run(const Task& task, const TrainSettings& settings) {
  Trial trial{task, settings.sequences_at_a_time(), updater_for(task, settings)};
  if (processes().rank() > 0) return;
  const Device device = settings.chosen_device();
  const int64_t count = processes().size(), own = settings.batch / count;  // sequences of this process
  set_processes(std::make_shared<Communicator>());
  int64_t tokens = 0;  // of the last update
  const auto seconds_of = [&](int64_t batch) {
    return device_seconds(device, [&] { tokens = trial.update(batch, std::min(trial.whole, batch)) * count; });
  };
  const double parameter_bytes = 4 * static_cast<double>(element_count(task.parameters()));
  const auto batch = static_cast<double>(own);
  const double to_send = count > 1 ? parameter_bytes : 0;  // where the sums of gradients lie that are sent
  const double step_bytes = update_bytes(trial, parameter_bytes, device, own) + to_send;
  const auto moment_bytes = static_cast<double>(trial.updater.optimizer().state_bytes());
  const double bytes = parameter_bytes + moment_bytes + step_bytes;
  const double free = static_cast<double>(free_memory(device));

  double seconds = seconds_of(2) * batch / 2;
  double update_tokens = static_cast<double>(tokens) * batch / 2;
  const bool measured = bytes < free && seconds < 30;
  if (measured) {
    seconds_of(own);  // the first touch of new memory is slow
    seconds = std::min(seconds_of(own), seconds_of(own));
    update_tokens = static_cast<double>(tokens);
  }
  double total = seconds * static_cast<double>(settings.steps);
  if (settings.minutes > 0) total = std::min(total, 60 * settings.minutes);

  fmt::print("parameters          {}\n", grouped(parameter_bytes / 4));
  if (count > 1) fmt::print("processes           {}: memory is that of each, time without that of messages\n", count);
  fmt::print("memory              {}: {} parameters, {} moments, {} activations and gradients\n", bytes_text(bytes),
             bytes_text(parameter_bytes), bytes_text(moment_bytes), bytes_text(step_bytes));
  fmt::print("free memory         {}{}\n", bytes_text(free),
             bytes < free ? "" : ": not enough, give --micro-batch, --recompute or fewer --threads");
  fmt::print("one update          {:.3g} s, {} tokens/s ({})\n", seconds, grouped(update_tokens / seconds),
             measured ? "measured" : "from a small batch");
  fmt::print("the whole run       about {} for {} updates\n", duration_text(total), grouped(total / seconds));
  fmt::print("nothing was written\n");
}

}  // namespace runnel
