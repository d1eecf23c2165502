// The training loop: updates, validation, metrics.csv, plots, checkpoints, resuming.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numbers>
#include <optional>
#include <set>

#include "apps/cli/terminal.h"
#include "apps/cli/version.h"
#include "apps/plots/pictures.h"
#include "apps/training/communicator.h"
#include "apps/training/dry_run.h"
#include "apps/training/interrupt.h"
#include "apps/training/metrics.h"
#include "apps/training/report.h"
#include "apps/training/run_folder.h"
#include "apps/training/task.h"
#include "engine/check.h"
#include "engine/file.h"
#include "engine/memory.h"
#include "models/checkpoint.h"

namespace runnel {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Shows how far something is, and leaves it on Ctrl-C.
WorkDone interruptible(const char* what) {
  return [progress = Progress(what)](int64_t done, int64_t total) {
    stop_if_interrupted();
    progress(done, total);
  };
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Where a run stands, apart from weights and moments. All of it follows from seed and step: a checkpoint holds no time.
struct TrainState {
  int64_t step = 0;     // updates made
  double loss_sum = 0;  // since the last row of metrics.csv
  int64_t loss_count = 0;
  double best = NAN;               // the first metric at its best
  int64_t best_step = 0;           // where it last became better
  int64_t stale = 0;               // --schedule plateau: validations since then, or since the last halving
  int64_t halvings = 0;            // --schedule plateau: of the learning rate
  bool is_evaluation_due = false;  // the run was interrupted while it evaluated this step
};

void to_json(json& j, const TrainState& s) {
  j = {{"step", s.step}, {"loss_sum", s.loss_sum}, {"loss_count", s.loss_count}};
  if (std::isfinite(s.best)) j["best"] = s.best, j["best_step"] = s.best_step;
  if (s.stale) j["stale"] = s.stale;
  if (s.halvings) j["halvings"] = s.halvings;
  if (s.is_evaluation_due) j["evaluation_due"] = true;
}

TrainState train_state(const Checkpoint& c) {
  const json state = c.state;
  const json sum = state.value("loss_sum", json()), count = state.value("loss_count", json());
  const json best = state.value("best", json(NAN)), due = state.value("evaluation_due", json(false));
  const json best_step = state.value("best_step", json(0u));
  const json stale = state.value("stale", json(0u)), halvings = state.value("halvings", json(0u));
  const bool is_whole = sum.is_number() && count.is_number_unsigned() && count <= state.at("step") &&
                        best.is_number_float() && due.is_boolean() && !(due == true && count == 0) &&
                        best_step.is_number_unsigned() && stale.is_number_unsigned() && halvings.is_number_unsigned();
  check(is_whole, c.path.string(), " is damaged: it does not say where the run stands");
  return {c.step(), sum, count, best, best_step, stale, halvings, due};
}

class Trainer {
 public:
  Trainer(const Task& task, const TrainSettings& settings, const json& config)
      : task_(task),
        settings_(settings),
        config_(config),
        metrics_(task.metrics()),
        parameters_(task.parameters()),
        updater_(updater_for(task, settings)) {}

  int run();
  // Ranks other than 0 execute the commands of rank 0.
  int serve();

 private:
  struct Command {
    enum { update, evaluate, save, leave } what;
    int64_t step = 0;  // of an update
    double lr = 0;
    int status = 0;  // to leave with
  };
  // Rank 0 sends a command to the others; they receive it.
  static Command broadcast(Command command) {
    processes().broadcast(&command, sizeof command);
    return command;
  }
  // Throws Error that names the first process that was started with other settings than rank 0.
  void check_settings() const;
  void share_state();  // rank 0's weights, moments and step with the others

  Updater::Result update(int64_t step, double lr);
  std::string of_all_steps() const {  // " of 10,000", unless the clock ends the run
    return settings_.minutes > 0 ? "" : " of " + grouped(static_cast<double>(settings_.steps));
  }
  double learning_rate(int64_t step, double seconds) const;
  // Takes over weights, moments and where the run stands. Changes nothing if it throws.
  void load(const fs::path& path);
  void open_folder();
  // Calls a function that writes a file. If it fails, training continues: says so, once until it works again, and
  // returns false.
  bool attempt(const std::string& file, const std::function<void()>& write);
  void save();
  void save_if_best(double value);
  std::vector<double> evaluate();
  Checkpoint checkpoint(const fs::path& path, const Parameters& moments) const;
  void report(double seconds, double rate);  // loss.png and report.html

  const Task& task_;
  const TrainSettings& settings_;
  const json config_;
  const std::vector<Metric> metrics_;
  const Parameters parameters_;
  Updater updater_;
  std::optional<RunFolder> folder_;  // of rank 0
  TrainState at_;
  Parameters moments_;             // from a checkpoint, until they are shared
  int64_t saved_ = -1;             // the step that last.safetensors holds
  double begun_ = 0;               // now(), less the seconds that the run has been trained
  std::set<std::string> failing_;  // files that could not be written the last time
};

Updater::Result Trainer::update(int64_t step, double lr) {
  updater_.optimizer().set_lr(lr);
  const Updater::Result done =
      updater_.update(step, own_slices(task_, step, settings_.batch, settings_.sequences_at_a_time()));
  if (!done.is_finite)
    fail("step ", step + 1, ": ", updater_.first_non_finite(), "; ",
         saved_ < 0 ? "nothing was saved yet" : fmt::format("{} holds step {}", folder_->last(), saved_),
         "; a run with a lower --lr may get further");
  return done;
}

double Trainer::learning_rate(int64_t step, double seconds) const {
  const std::string& schedule = settings_.schedule;
  const auto updates = static_cast<double>(step + 1), warmup = static_cast<double>(settings_.warmup);
  const double lr = settings_.lr * (updates < warmup ? updates / warmup : 1);
  if (schedule == "step") return lr * (step < settings_.lr_step ? 1 : 0.1);
  if (schedule == "constant") return lr;
  if (schedule == "plateau") return lr * std::pow(0.5, at_.halvings);
  if (schedule == "rsqrt") return lr * std::sqrt(std::max(warmup, 1.0) / std::max(updates, std::max(warmup, 1.0)));
  double done = static_cast<double>(step) / static_cast<double>(settings_.steps);
  if (settings_.minutes > 0) done = std::max(done, seconds / (60 * settings_.minutes));
  const double left = 1 - std::min(done, 1.0);
  if (schedule == "quadratic") return lr * left * left;
  const double after_warmup = 1 - warmup / static_cast<double>(settings_.steps);
  const double of_the_rest = after_warmup > 0 ? std::min(1.0, left / after_warmup) : 1;
  if (schedule == "cosine") return lr * (1 - std::cos(std::numbers::pi * of_the_rest)) / 2;
  return lr * of_the_rest;  // one-cycle
}

Checkpoint Trainer::checkpoint(const fs::path& path, const Parameters& moments) const {
  Checkpoint c{.path = path,
               .content = SafeTensors{parameters_, {}},
               .task = task_.name(),
               .model = task_.model(),
               .config = config_,
               .data = task_.data(),
               .state = at_};
  c.config.erase("threads");  // they change no number
  c.content.tensors.insert(c.content.tensors.end(), moments.begin(), moments.end());
  return c;
}

bool Trainer::attempt(const std::string& file, const std::function<void()>& write) {
  try {
    write();
    failing_.erase(file);
    return true;
  } catch (const std::exception& error) {
    if (failing_.insert(file).second)
      warn(fmt::format("{}runnel: {}; the run goes on and will try again\n", is_terminal(STDERR_FILENO) ? "\n" : "",
                       error.what()));
    return false;
  }
}

void Trainer::save() {
  if (saved_ == at_.step) return;
  // An update can overflow although its gradients did not: such weights must not replace good ones.
  for (const auto& [name, tensor] : parameters_) {
    const std::vector<float> values = tensor.to_vector();
    check(std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); }), "update ", at_.step,
          " left numbers in ", name, " that are not finite; nothing was saved after step ",
          std::max<int64_t>(saved_, 0));
  }
  broadcast({.what = Command::save});
  Parameters moments = updater_.optimizer().state();
  for (const NamedTensor& one : task_.carried()) moments.push_back(one);
  const auto write = [&](const fs::path& path) { save_checkpoint(checkpoint(path, moments)); };
  const auto save_last = [&] { folder_->save_last(write); };
  if (saved_ < 0 && !settings_.resume) {  // a run that cannot be saved at all would be lost
    try {
      save_last();
    } catch (const std::exception& error) {
      fail(error.what(), "; it would have been the first checkpoint, so the run ends at step ", at_.step);
    }
  } else if (!attempt("last", save_last)) {
    return;
  }
  saved_ = at_.step;
  attempt("time", [&] { folder_->save_seconds(at_.step, now() - begun_); });
}

void Trainer::load(const fs::path& path) {
  const Checkpoint c = read_checkpoint(path, task_.name());
  moments_ = updater_.optimizer().empty_state();
  Parameters into = parameters_;
  into.insert(into.end(), moments_.begin(), moments_.end());
  for (const NamedTensor& one : task_.carried()) into.push_back(one);
  check(c.content.tensors.size() == into.size(), path.string(), " belongs to another model: it has ",
        c.content.tensors.size(), " tensors, not ", into.size());
  const TrainState at = train_state(c);
  restore(c.content, path, into);
  at_ = at;
  const json began = c.data.is_object() ? c.data.value("checksum", json()) : json(), now = task_.data();
  if (now.is_object() && !began.is_null() && began != now.value("checksum", json()))
    warn("runnel: the training data are not those that the run began with; the run goes on with them\n");
}

void Trainer::check_settings() const {
  json own{{"task", task_.name()},
           {"model", task_.model()},
           {"training data", task_.data().is_object() ? task_.data().value("checksum", json()) : json()}};
  for (const auto& [setting, value] : config_.items())
    if (setting != "threads" && setting != "data" && setting != "out") own["--" + setting] = value;
  check_that_all_agree(own);
}

void Trainer::share_state() {
  if (processes().size() > 1) {
    if (moments_.empty()) moments_ = updater_.optimizer().empty_state();
    Parameters all = parameters_;
    all.insert(all.end(), moments_.begin(), moments_.end());
    for (NamedTensor& one : all) {
      std::vector<float> values = one.tensor.to_vector();
      processes().broadcast(values.data(), values.size() * sizeof(float));
      if (processes().rank() > 0) assign(one.tensor, Tensor(one.tensor.shape(), values));
    }
    processes().broadcast(&at_.step, sizeof at_.step);
  }
  updater_.optimizer().set_state(std::exchange(moments_, {}));
  updater_.optimizer().set_steps(at_.step);
}

int Trainer::serve() {
  const InterruptGuard signals;  // rank 0 decides when to stop
  check_settings();
  share_state();
  const WorkDone say_nothing = [](int64_t, int64_t) {};
  for (;;) {
    const Command command = broadcast({});
    if (command.what == Command::leave) return command.status;
    try {
      if (command.what == Command::update) {
        update(command.step, command.lr);
      } else if (command.what == Command::save) {
        updater_.optimizer().state();
      } else {
        task_.validate(say_nothing);
        task_.preview_text(say_nothing);
        task_.preview(say_nothing);
      }
    } catch (const PeerFailed&) {  // rank 0 was interrupted, or has failed and ends all
    }
  }
}

void Trainer::open_folder() {
  folder_.emplace(settings_.out, settings_.resume, settings_.overwrite);
  if (settings_.resume) {
    folder_->load_last([&](const fs::path& path) {
      load(path);
      saved_ = at_.is_evaluation_due || path != folder_->last() ? -1 : at_.step;
    });
  }
  write_atomically(*folder_ / "config.json", {config_.dump(2) + "\n"});
}

void Trainer::save_if_best(double value) {
  const double before = at_.best;
  if (!std::isnan(before) && !(metrics_[0].higher_is_better ? value > before : value < before)) return;
  at_.best = value;
  at_.best_step = at_.step;
  if (!attempt("best", [&] { save_checkpoint(checkpoint(*folder_ / "best.safetensors", {})); })) at_.best = before;
}

// The metrics' values. Throws Interrupted on Ctrl-C.
std::vector<double> Trainer::evaluate() {
  broadcast({.what = Command::evaluate});
  const std::vector<double> values = task_.validate(interruptible("validated"));
  check(values.size() == metrics_.size(), task_.name(), ": ", values.size(), " values of ", metrics_.size(),
        " metrics");
  for (size_t i = 0; i < values.size(); ++i)
    check(std::isfinite(values[i]), "the metric ", metrics_[i].name, " is ", values[i], " at step ", at_.step);
  save_if_best(values[0]);
  attempt("preview", [&] {
    const std::string text = task_.preview_text(interruptible("previewed"));
    const std::vector<Picture> pictures = task_.preview(interruptible("previewed"));
    const fs::path stem = *folder_ / fmt::format("samples/step-{:07}", at_.step);
    if (!text.empty() || !pictures.empty()) fs::create_directories(stem.parent_path());
    if (!text.empty()) write_atomically(stem.string() + ".txt", {text});
    if (pictures.empty()) return;
    write_png(stem.string() + ".png", sheet(pictures, 8));
    if (is_terminal(STDOUT_FILENO)) {
      const int64_t fit =
          std::min<int64_t>(terminal_columns(STDOUT_FILENO) / (pictures[0].width + 4), std::ssize(pictures));
      if (fit > 0) say_escapes(erased_line + half_blocks(sheet({pictures.begin(), pictures.begin() + fit}, fit, 1)));
    }
  });
  if (settings_.schedule == "plateau") {
    at_.stale = at_.best_step == at_.step ? 0 : at_.stale + 1;
    if (at_.stale == settings_.patience) at_.stale = 0, ++at_.halvings;
  }
  return values;
}

void Trainer::report(double seconds, double rate) {
  const double epoch = static_cast<double>(task_.epoch()) / static_cast<double>(settings_.batch);  // in updates
  plot_loss(*folder_ / "metrics.csv", *folder_ / "loss.png", task_.name(), name_of(task_.loss_unit()), epoch,
            metrics_[0].unit == Unit::percent && !std::isnan(at_.best) ? metrics_[0].name : "");
  const Device device = settings_.chosen_device();
  attempt("report", [&] {
    write_report(
        folder_->path(),
        {task_.name() + ", " + folder_->name(),
         {{"updates", grouped(double(at_.step)) + of_all_steps()},
          {"best " + metrics_[0].name,
           std::isnan(at_.best) ? "not measured yet" : value_text(at_.best, metrics_[0].unit)},
          {"training time", duration_text(seconds)},
          {"speed", grouped(rate) + " tokens/s"},
          {"memory of tensors", "up to " + bytes_text(static_cast<double>(memory_use(device).peak))},
          {"parameters", grouped(static_cast<double>(element_count(parameters_)))},
          {"machine", fmt::format("{}, {} threads, {}", model_name(device), settings_.threads, settings_.precision)},
          {"program", program_text()}},
         config_});
  });
}

int Trainer::run() {
  const InterruptGuard signals;
  check_saveable(checkpoint({}, {}));
  check_settings();
  open_folder();
  share_state();
  MetricsFile metrics(*folder_ / "metrics.csv", metrics_, at_.step);
  reset_peak(settings_.chosen_device());
  const bool terminal = is_terminal(STDOUT_FILENO);
  const double first_seconds = std::max(metrics.seconds(), folder_->seconds_at(at_.step));
  begun_ = now() - first_seconds;
  const double limit = settings_.minutes > 0 ? 60 * settings_.minutes : std::numeric_limits<double>::infinity();
  const int64_t first = at_.step;
  double row_seconds = 0, shown = 0, plotted = now(), saved = now();
  int64_t row_tokens = 0;
  double rate = 0;  // tokens per second, over the updates since the last row

  const auto show = [&](double loss, const std::vector<double>& values) {
    const double seconds = now() - begun_;
    const double per_step = (seconds - first_seconds) / static_cast<double>(std::max<int64_t>(at_.step - first, 1));
    const double left = std::min(per_step * static_cast<double>(settings_.steps - at_.step), limit - seconds);
    const double done = std::max(static_cast<double>(at_.step) / static_cast<double>(settings_.steps), seconds / limit);
    std::string line =
        fmt::format("step {}{} ({:.0f}%)  loss {}  {} tokens/s  {} left", grouped(double(at_.step)), of_all_steps(),
                    std::floor(100 * std::min(done, 1.0)), value_text(loss, task_.loss_unit()), grouped(rate),
                    duration_text(std::max(left, 0.0)));
    for (size_t i = 0; i < values.size(); ++i)
      line += "  " + metrics_[i].name + " " + value_text(values[i], metrics_[i].unit);
    if (terminal && values.empty())
      line.resize(std::min(line.size(), static_cast<size_t>(terminal_columns(STDOUT_FILENO) - 1)));
    if (terminal) say_escapes(erased_line);
    say(line + (terminal && values.empty() ? "" : "\n"));
    shown = now();
  };
  if (first > 0) say(fmt::format("resuming at step {}\n", grouped(double(first))));

  bool last = at_.step >= settings_.steps || first_seconds >= limit;
  while ((!last || at_.is_evaluation_due) && !is_interrupted()) {
    const double start = now();
    if (!at_.is_evaluation_due) {
      const double lr = learning_rate(at_.step, start - begun_);
      broadcast({.what = Command::update, .step = at_.step, .lr = lr});
      const Updater::Result done = update(at_.step, lr);
      at_.loss_sum += done.loss;
      ++at_.loss_count;
      ++at_.step;
      row_seconds += now() - start;
      row_tokens += done.tokens;
      rate = static_cast<double>(row_tokens) / row_seconds;
    }
    const double loss = at_.loss_sum / static_cast<double>(at_.loss_count);
    const double lr = learning_rate(at_.step - 1, start - begun_);  // before an evaluation may halve it

    last = at_.step >= settings_.steps || now() - begun_ >= limit;
    const bool evaluates = last || at_.is_evaluation_due || at_.step % settings_.evaluate_every == 0;
    std::vector<double> values;
    try {
      if (evaluates) values = evaluate();
    } catch (const Interrupted&) {
      at_.is_evaluation_due = true;
      last = false;
      break;
    }
    at_.is_evaluation_due = false;
    if (evaluates || now() - shown > (terminal ? 0.2 : 10)) show(loss, values);
    if (evaluates || at_.step % settings_.log_every == 0) {
      metrics.add(at_.step, loss, values, lr, rate, now() - begun_);
      attempt("metrics", [&] { metrics.write(); });
      at_.loss_sum = 0;
      at_.loss_count = 0;
      row_seconds = 0;
      row_tokens = 0;
      if (now() - plotted > 30) {
        report(now() - begun_, rate);
        plotted = now();
      }
    }
    if (last && failing_.contains("best")) save_if_best(values[0]);
    if (last || at_.step % settings_.save_every == 0 || now() - saved > 120) {
      save();
      saved = now();
    }
  }
  save();
  report(now() - begun_, rate);
  check(saved_ == at_.step, "the run ends at step ", at_.step, ", which could not be saved; ",
        saved_ < 0 ? "nothing was"
                   : fmt::format("{} holds step {}: free some disk space, then --resume continues from there",
                                 folder_->last(), saved_));
  check(!failing_.contains("best"), folder_->name(), "/best.safetensors could not be saved; ", folder_->last(),
        " holds step ", at_.step);
  broadcast({.what = Command::leave, .status = last ? 0 : 130});
  if (!last) {
    say(fmt::format("{}stopped and saved at step {}; continue with: runnel {} train --resume --out {}\n",
                    terminal ? "\n" : "", grouped(double(at_.step)), task_.name(), shell_quoted(folder_->name())));
    return 130;
  }
  say(fmt::format("finished at step {} after {}, with up to {} of tensors; the run is in {}\n",
                  grouped(double(at_.step)), duration_text(now() - begun_),
                  bytes_text(static_cast<double>(memory_use(settings_.chosen_device()).peak)), folder_->name()));
  return 0;
}

}  // namespace

int train(const Task& task, const TrainSettings& settings, const nlohmann::json& config) {
  if (settings.dry_run) {
    dry_run(task, settings);
    return 0;
  }
  Trainer trainer(task, settings, config);
  return processes().rank() == 0 ? trainer.run() : trainer.serve();
}

}  // namespace runnel
