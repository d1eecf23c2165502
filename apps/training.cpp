#include "apps/training.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <numbers>
#include <set>

#include "apps/pictures.h"
#include "engine/check.h"
#include "engine/finite_guard.h"
#include "engine/tape.h"
#include "models/optimizer.h"
#include "models/safetensors.h"
#include "ops/ops.h"

namespace runnel {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// 3163787 -> 3,163,787
std::string grouped(double n) {
  std::string digits = fmt::format("{:.0f}", n);
  for (size_t i = digits.size(); i > 3;) digits.insert(i -= 3, 1, ',');
  return digits;
}

std::string bytes_text(double bytes) {
  return bytes < 1e9 ? fmt::format("{:.1f} MB", bytes / 1e6) : fmt::format("{:.2f} GB", bytes / 1e9);
}

// --- interruption -----------------------------------------------------------------------------------------------

volatile std::sig_atomic_t interrupted = 0;

// While it lives, the first SIGINT or SIGTERM only asks; a second one ends the program as usual.
struct SignalsAsk {
  struct sigaction old_int, old_term;
  SignalsAsk() {
    interrupted = 0;
    struct sigaction ask {};
    ask.sa_handler = [](int) { interrupted = 1; };
    ask.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
    sigaction(SIGINT, &ask, &old_int);
    sigaction(SIGTERM, &ask, &old_term);
  }
  ~SignalsAsk() {
    sigaction(SIGINT, &old_int, nullptr);
    sigaction(SIGTERM, &old_term, nullptr);
  }
};

// --- the run folder ---------------------------------------------------------------------------------------------

// Where a run stands, apart from weights and moments. All of it follows from seed and step: no clock in a checkpoint.
struct Standing {
  int64_t step = 0;     // updates made
  double loss_sum = 0;  // since the last row of metrics.csv
  int64_t loss_count = 0;
  double best = std::numeric_limits<double>::infinity();  // validation loss
};

void to_json(json& j, const Standing& s) {
  j = {{"step", s.step}, {"loss_sum", s.loss_sum}, {"loss_count", s.loss_count}};
  if (std::isfinite(s.best)) j["best"] = s.best;
}

void from_json(const json& j, Standing& s) {
  s.step = j.at("step");
  s.loss_sum = j.at("loss_sum");
  s.loss_count = j.at("loss_count");
  s.best = j.value("best", s.best);
}

json model_json(const TransformerConfig& c) {
  return {{"layers", c.layers},
          {"heads", c.heads},
          {"head_dim", c.head_dim},
          {"feed_forward", c.feed_forward},
          {"vocabulary", c.vocabulary},
          {"outputs", c.outputs},
          {"max_length", c.max_length},
          {"dropout", c.dropout},
          {"attention", name(c.attention)},
          {"rounds", c.lsh.rounds},
          {"buckets", c.lsh.buckets},
          {"chunk", c.lsh.chunk},
          {"row", c.row},
          {"channels", c.channels}};
}

// A value from a checkpoint's metadata.
json metadata(const SafeTensors& content, const fs::path& path, const std::string& key) {
  const auto found = content.metadata.find(key);
  check(found != content.metadata.end(), path.string(), " is not a checkpoint of this program: it has no \"", key,
        "\"");
  json value = json::parse(found->second, nullptr, false);
  check(!value.is_discarded(), path.string(), " is damaged: its \"", key, "\" is not JSON");
  return value;
}

SafeTensors load_of_app(const fs::path& path, const std::string& app) {
  SafeTensors content = load_safetensors(path);
  const json of = metadata(content, path, "app");
  check(of == app, path.string(), " is a checkpoint of the app ", of.dump(), ", not of \"", app, "\"");
  return content;
}

// metrics.csv: a row per --log-every updates, written one by one. What cannot be written is kept for the next time.
class Metrics {
 public:
  // Keeps the rows up to and including `step` and cuts what a killed run wrote beyond its last checkpoint.
  Metrics(fs::path path, int64_t step) : path_(std::move(path)) {
    static const std::string header = "step,loss,loss_bits,validation,validation_bits,lr,tokens_per_second,seconds";
    std::string kept = header + "\n";
    std::ifstream old(path_);
    for (std::string row; step > 0 && std::getline(old, row) && !old.eof();) {  // a row without its newline was cut
      char* end;
      const long long row_step = std::strtoll(row.c_str(), &end, 10);
      if (*end != ',' || row_step > step) continue;
      kept += row + "\n";
      seconds_ = std::strtod(row.c_str() + row.rfind(',') + 1, nullptr);
    }
    write_atomically(path_, {kept});
    file_ = open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    require(file_ >= 0);
  }
  ~Metrics() { close(file_); }
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  double seconds() const { return seconds_; }  // of the last row kept: the time the run took so far

  void add(const Standing& at, double loss, const double* validation, double lr, double rate, double seconds) {
    const auto both = [](double nats) { return fmt::format("{:.6f},{:.6f}", nats, nats / std::numbers::ln2); };
    pending_ += fmt::format("{},{},{},{:.4g},{:.0f},{:.3f}\n", at.step, both(loss),
                            validation ? both(*validation) : ",", lr, rate, seconds);
  }
  void write() {
    while (!pending_.empty()) {
      const ssize_t written = ::write(file_, pending_.data(), pending_.size());
      if (written < 0 && errno == EINTR) continue;
      require(written >= 0);
      pending_.erase(0, static_cast<size_t>(written));
    }
  }

 private:
  void require(bool holds) const { check(holds, "cannot write ", path_.string(), ": ", std::strerror(errno)); }
  fs::path path_;
  int file_ = -1;
  std::string pending_;
  double seconds_ = 0;
};

// --- one run ----------------------------------------------------------------------------------------------------

class Run {
 public:
  Run(const Task& task, const Settings& settings, const json& config)
      : task_(task),
        settings_(settings),
        part_(settings.micro_batch ? std::min(settings.micro_batch, settings.batch) : settings.batch),
        folder_(settings.out),
        config_(config),
        parameters_(task.model.parameters()),
        optimizer_(parameters_,
                   {.lr = settings.lr,
                    .beta2 = settings.beta2,
                    .weight_decay = settings.weight_decay,
                    .clip = settings.clip,
                    .global_clip = settings.global_clip},
                   settings.optimizer == "muon") {}

  void dry();
  int run();

 private:
  double update_bytes();
  // The mean loss of an update's sequences, `part` at a time, and its gradients.
  Tensor differentiate(int64_t step, int64_t batch, int64_t part, Gradients& gradients) const;
  // One update with `batch` sequences, `part` at a time. Returns the loss.
  double update(int64_t step, int64_t batch, int64_t part);
  [[noreturn]] void explain(int64_t step, int64_t batch, int64_t part) const;
  double lr(int64_t step, double seconds) const;
  void open_folder();
  // Runs what writes a file. If it fails, the run goes on: says so, once until it works again, and returns false.
  bool attempt(const std::string& file, const std::function<void()>& write);
  void save();
  void evaluate(double& validation);
  SafeTensors content(bool with_optimizer) const;
  std::string loss_text(double nats) const {
    return task_.bits ? fmt::format("{:.4f} bits/dim", nats / std::numbers::ln2) : fmt::format("{:.5f} nats", nats);
  }

  const Task& task_;
  const Settings& settings_;
  const int64_t part_;  // sequences computed at a time
  const fs::path folder_;
  const json config_;
  std::vector<NamedTensor> parameters_;
  Optimizer optimizer_;
  Standing at_;
  int64_t saved_ = -1;             // the step that last.safetensors holds
  std::set<std::string> failing_;  // files that could not be written the last time
};

Tensor Run::differentiate(int64_t step, int64_t batch, int64_t part, Gradients& gradients) const {
  const Key key = key_for(settings_.seed, Purpose::training).fold(static_cast<uint64_t>(step));
  const int64_t first = step * batch;
  const auto weight = [&](int64_t from, int64_t count) {
    return task_.weight ? task_.weight(from, count) : static_cast<double>(count);
  };
  const auto differentiate_part = [&](int64_t from, int64_t count, Key own, double share) {
    Tape tape;
    Tensor loss = task_.loss(from, count, own);
    if (share < 1) loss = scale(loss, static_cast<float>(share));
    gradients = tape.backward(loss, std::move(gradients));
    return loss;
  };
  if (part >= batch) return differentiate_part(first, batch, key, 1);
  const double whole = weight(first, batch);
  Tensor total;
  for (int64_t done = 0; done < batch; done += part) {
    const int64_t count = std::min(part, batch - done);
    const Tensor loss = differentiate_part(first + done, count, key.fold(static_cast<uint64_t>(1 + done)),
                                           weight(first + done, count) / whole);
    total = total ? add(total, loss) : loss;
  }
  return total;
}

double Run::update(int64_t step, int64_t batch, int64_t part) {
  Gradients gradients;
  const Tensor loss = differentiate(step, batch, part, gradients);
  const Tensor squares = optimizer_.squares(gradients);
  const double nats = loss.item();  // waits for the device: the squares are there too
  if (!std::isfinite(nats) || !std::isfinite(squares.to_vector().back())) {
    gradients = {};
    explain(step, batch, part);
  }
  optimizer_.step(gradients, squares);
  return nats;
}

// Says which op of a step came first to a number that is not finite, by computing the step again.
void Run::explain(int64_t step, int64_t batch, int64_t part) const {
  std::string cause = "the norm of the gradients is beyond float32";
  try {
    const FiniteGuard guard;
    Gradients gradients;
    differentiate(step, batch, part, gradients);
  } catch (const Error& error) {
    cause = error.what();
  }
  fail("step ", step + 1, ": ", cause, "; ",
       saved_ < 0 ? "nothing was saved yet"
                  : fmt::format("{} holds step {}", (folder_ / "last.safetensors").string(), saved_),
       "; a run with a lower --lr may get further");
}

double Run::lr(int64_t step, double seconds) const {
  if (settings_.schedule == "step") return settings_.lr * (step < settings_.lr_step ? 1 : 0.1);
  if (settings_.schedule == "constant") return settings_.lr;
  double done = static_cast<double>(step) / static_cast<double>(settings_.steps);
  if (settings_.minutes > 0) done = std::max(done, seconds / (60 * settings_.minutes));
  const double left = 1 - std::min(done, 1.0);
  return settings_.lr * left * left;
}

SafeTensors Run::content(bool with_optimizer) const {
  SafeTensors content{parameters_,
                      {{"app", json(task_.app).dump()},
                       {"model", model_json(task_.model.config()).dump()},
                       {"config", config_.dump()},
                       {"data", task_.data.dump()},
                       {"standing", json(at_).dump()}}};
  if (with_optimizer)
    for (const NamedTensor& moment : optimizer_.state()) content.tensors.push_back(moment);
  return content;
}

bool Run::attempt(const std::string& file, const std::function<void()>& write) {
  try {
    write();
    failing_.erase(file);
    return true;
  } catch (const std::exception& error) {
    if (failing_.insert(file).second)
      fmt::print(stderr, "{}runnel: {}; the run goes on and will try again\n", isatty(STDERR_FILENO) ? "\n" : "",
                 error.what());
    return false;
  }
}

void Run::save() {
  if (saved_ == at_.step) return;
  // An update can overflow although its gradients did not: such weights must not replace good ones.
  for (const auto& [name, tensor] : parameters_) {
    const std::vector<float> values = tensor.to_vector();
    check(std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); }), "update ", at_.step,
          " left numbers in ", name, " that are not finite; nothing was saved after step ",
          std::max<int64_t>(saved_, 0));
  }
  if (attempt("last", [&] { save_safetensors(folder_ / "last.safetensors", content(true)); })) saved_ = at_.step;
}

void Run::open_folder() {
  const fs::path last = folder_ / "last.safetensors";
  std::error_code error;
  const bool exists = fs::exists(last, error);
  check<UsageError>(!exists || settings_.resume, "--out ", folder_.string(),
                    " already holds a run; add --resume to go on with it, or choose another folder");
  fs::create_directories(folder_, error);
  check(!error, "cannot make the run folder ", folder_.string(), ": ", error.message());
  if (exists) {
    const SafeTensors content = load_of_app(last, task_.app);
    std::vector<NamedTensor> into = parameters_;
    for (const NamedTensor& moment : optimizer_.state()) into.push_back(moment);
    check(content.tensors.size() == into.size(), last.string(), " belongs to another model: it has ",
          content.tensors.size(), " tensors, not ", into.size());
    const json standing = metadata(content, last, "standing");
    try {
      at_ = standing.get<Standing>();
    } catch (const json::exception&) {
      fail(last.string(), " is damaged: it does not say where the run stands");
    }
    restore(content, last, into);
    optimizer_.set_steps(at_.step);
    saved_ = at_.step;
  }
  write_atomically(folder_ / "config.json", {config_.dump(2) + "\n"});
}

void Run::evaluate(double& validation) {
  validation = task_.validate();
  check(std::isfinite(validation), "the validation loss is ", validation, " at step ", at_.step);
  if (const double before = at_.best; validation < before) {
    at_.best = validation;
    if (!attempt("best", [&] { save_safetensors(folder_ / "best.safetensors", content(false)); })) at_.best = before;
  }
  if (!task_.preview) return;
  attempt("preview", [&] {
    fs::create_directories(folder_ / "samples");
    const std::vector<Picture> pictures = task_.preview();
    write_png(folder_ / "samples" / fmt::format("step-{:07}.png", at_.step), sheet(pictures, 8));
    winsize window{};
    if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0) {
      const int64_t fit = std::min<int64_t>(window.ws_col / (pictures[0].width + 4), std::ssize(pictures));
      if (fit > 0) fmt::print("\r\x1b[K{}", half_blocks(sheet({pictures.begin(), pictures.begin() + fit}, fit, 1)));
    }
  });
}

int Run::run() {
  open_folder();
  Metrics metrics(folder_ / "metrics.csv", at_.step);
  const SignalsAsk signals;
  reset_peak(settings_.where());
  const bool terminal = isatty(STDOUT_FILENO);
  const double begun = now() - metrics.seconds();
  const double limit = settings_.minutes > 0 ? 60 * settings_.minutes : std::numeric_limits<double>::infinity();
  const int64_t first = at_.step;
  double first_seconds = metrics.seconds(), row_seconds = 0, shown = 0, plotted = now(), saved = now();
  double rate = 0;  // tokens per second, over the updates since the last row

  const auto plot = [&] {
    const double epoch = static_cast<double>(task_.epoch) / static_cast<double>(settings_.batch);  // in updates
    plot_loss(folder_ / "metrics.csv", folder_ / "loss.png", task_.app, task_.bits, epoch);
  };
  const auto show = [&](double loss, const double* validation) {
    const double seconds = now() - begun;
    const double per_step = (seconds - first_seconds) / static_cast<double>(std::max<int64_t>(at_.step - first, 1));
    const double left = std::min(per_step * static_cast<double>(settings_.steps - at_.step), limit - seconds);
    std::string line = fmt::format("step {} of {}  loss {}  {} tokens/s  {} left", grouped(double(at_.step)),
                                   grouped(double(settings_.steps)), loss_text(loss), grouped(rate),
                                   duration_text(std::max(left, 0.0)));
    if (validation) line += "  validation " + loss_text(*validation);
    fmt::print("{}{}{}", terminal ? "\r\x1b[K" : "", line, terminal && !validation ? "" : "\n");
    std::fflush(stdout);
    shown = now();
  };
  if (first > 0) fmt::print("resuming at step {}\n", grouped(double(first)));

  bool last = at_.step >= settings_.steps || metrics.seconds() >= limit;
  while (!last && !interrupted) {
    const double start = now(), rate_of_learning = lr(at_.step, start - begun);
    optimizer_.set_lr(rate_of_learning);
    at_.loss_sum += update(at_.step, settings_.batch, part_);
    ++at_.loss_count;
    ++at_.step;
    row_seconds += now() - start;
    const double loss = at_.loss_sum / static_cast<double>(at_.loss_count);
    rate = static_cast<double>(at_.loss_count * settings_.batch * task_.tokens) / row_seconds;

    last = at_.step == settings_.steps || now() - begun >= limit;
    const bool evaluates = last || at_.step % settings_.evaluate_every == 0;
    double validation = 0;
    if (evaluates) evaluate(validation);
    if (evaluates || now() - shown > (terminal ? 0.2 : 10)) show(loss, evaluates ? &validation : nullptr);
    if (evaluates || at_.step % settings_.log_every == 0) {
      metrics.add(at_, loss, evaluates ? &validation : nullptr, rate_of_learning, rate, now() - begun);
      attempt("metrics", [&] { metrics.write(); });
      at_.loss_sum = 0;
      at_.loss_count = 0;
      row_seconds = 0;
      if (now() - plotted > 30) {
        plot();
        plotted = now();
      }
    }
    if (last || at_.step % settings_.save_every == 0 || now() - saved > 120) {
      save();
      saved = now();
    }
  }
  save();
  plot();
  check(saved_ == at_.step, "the run ends at step ", at_.step, ", which could not be saved; ",
        saved_ < 0 ? "nothing was"
                   : fmt::format("{} holds step {}: make room, then --resume goes on from there",
                                 (folder_ / "last.safetensors").string(), saved_));
  if (!last) {
    fmt::print("{}stopped and saved at step {}; go on with: runnel {} train --resume --out {}\n", terminal ? "\n" : "",
               grouped(double(at_.step)), task_.app, folder_.string());
    return 130;
  }
  fmt::print("finished at step {} after {}, with up to {} of tensors; the run is in {}\n", grouped(double(at_.step)),
             duration_text(now() - begun), bytes_text(static_cast<double>(memory_use(settings_.where()).peak)),
             folder_.string());
  return 0;
}

// The most bytes that tensors take during an update, on top of parameters and moments. Whole batches may not fit, but
// small ones say what they take: where activations outweigh the gradients of the parameters, bytes are linear in what
// is computed at a time.
double Run::update_bytes() {
  const double enough = 8 * 4 * static_cast<double>(task_.model.parameter_count());
  const auto peak = [&](int64_t part) {
    reset_peak(settings_.where());
    const int64_t before = memory_use(settings_.where()).live;
    update(0, part_ < settings_.batch ? 2 * part : part, part);  // with gradients to add to, if there will be
    return static_cast<double>(memory_use(settings_.where()).peak - before);
  };
  int64_t part = 1;
  double bytes = peak(part), half = 0;
  while (part < part_ && (part == 1 || bytes < enough)) {
    half = bytes;
    part = std::min(2 * part, part_);
    bytes = peak(part);
  }
  if (part == part_) return bytes;
  return bytes + static_cast<double>(part_ - part) * (bytes - half) / static_cast<double>(part / 2);
}

void Run::dry() {
  const auto seconds_of = [&](int64_t batch) {
    const double start = now();
    update(0, batch, std::min(part_, batch));
    synchronize(settings_.where());
    return now() - start;
  };
  const double step_bytes = update_bytes(), batch = static_cast<double>(settings_.batch);
  const double parameter_bytes = 4 * static_cast<double>(task_.model.parameter_count());
  double moment_bytes = 0;
  for (const NamedTensor& moment : optimizer_.state()) moment_bytes += 4 * static_cast<double>(moment.tensor.size());
  const double bytes = parameter_bytes + moment_bytes + step_bytes;
  const double free = static_cast<double>(free_memory(settings_.where()));

  double seconds = seconds_of(2) * batch / 2;
  const bool measured = bytes < free && seconds < 30;
  if (measured) {
    seconds_of(settings_.batch);  // the first touch of new memory is slow
    seconds = std::min(seconds_of(settings_.batch), seconds_of(settings_.batch));
  }
  double total = seconds * static_cast<double>(settings_.steps);
  if (settings_.minutes > 0) total = std::min(total, 60 * settings_.minutes);

  fmt::print("parameters          {}\n", grouped(parameter_bytes / 4));
  fmt::print("memory              {}: {} parameters, {} moments, {} activations and gradients\n", bytes_text(bytes),
             bytes_text(parameter_bytes), bytes_text(moment_bytes), bytes_text(step_bytes));
  fmt::print("free memory         {}{}\n", bytes_text(free),
             bytes < free ? "" : ": not enough, give --micro-batch or --recompute");
  fmt::print("one update          {:.3g} s, {} tokens/s ({})\n", seconds,
             grouped(batch * static_cast<double>(task_.tokens) / seconds),
             measured ? "measured" : "from a small batch");
  fmt::print("the whole run       about {} for {} updates\n", duration_text(total), grouped(total / seconds));
  fmt::print("nothing was written\n");
}

}  // namespace

std::string duration_text(double seconds) {
  if (seconds < 100) return fmt::format("{:.0f} s", seconds);
  const double minutes = seconds / 60;
  if (minutes < 100) return fmt::format("{:.0f} min", minutes);
  return minutes < 48 * 60 ? fmt::format("{:.1f} h", minutes / 60) : fmt::format("{:.1f} days", minutes / 60 / 24);
}

int train(const Task& task, const Settings& settings, nlohmann::json config) {
  Run run(task, settings, config);
  if (!settings.dry_run) return run.run();
  run.dry();
  return 0;
}

Checkpoint load_checkpoint(const std::filesystem::path& given, const std::string& app, Device device) {
  check<UsageError>(!given.empty(), "--model is needed: a run folder or a .safetensors file");
  fs::path path = given;
  std::error_code error;
  if (fs::is_directory(given, error))
    path = given / (fs::exists(given / "best.safetensors", error) ? "best.safetensors" : "last.safetensors");
  const SafeTensors content = load_of_app(path, app);
  const json model = metadata(content, path, "model"), standing = metadata(content, path, "standing");
  const auto attention = [&] {
    try {
      return attention_named(model.value("attention", "linear"));
    } catch (const Error& unknown) {
      fail(path.string(), " is damaged: ", unknown.what());
    }
  };
  try {
    const TransformerConfig c{.layers = model.at("layers"),
                              .heads = model.at("heads"),
                              .head_dim = model.at("head_dim"),
                              .feed_forward = model.at("feed_forward"),
                              .vocabulary = model.at("vocabulary"),
                              .outputs = model.at("outputs"),
                              .max_length = model.at("max_length"),
                              .dropout = model.at("dropout"),
                              .attention = attention(),
                              .lsh = {model.value("rounds", int64_t{4}), model.value("buckets", int64_t{32}),
                                      model.value("chunk", int64_t{32})},
                              .row = model.value("row", int64_t{0}),
                              .channels = model.value("channels", int64_t{1})};
    // Before a damaged number makes a model of terabytes: each stands for an axis of some tensor in the file.
    int64_t most = 0;
    for (const auto& [name, tensor] : content.tensors) most = std::max(most, tensor.size());
    for (const int64_t size : {c.layers, c.heads, c.head_dim, c.feed_forward, c.vocabulary, c.outputs})
      check(size > 0 && size <= most, path.string(), " is damaged: it describes an impossible model");
    Checkpoint checkpoint{path, Transformer(c, Key{}, device), metadata(content, path, "config"),
                          metadata(content, path, "data"), standing.at("step")};
    restore(content, path, checkpoint.model.parameters());
    return checkpoint;
  } catch (const json::exception&) {
    fail(path.string(), " is damaged: it does not describe its model");
  }
}

}  // namespace runnel
