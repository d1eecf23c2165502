// text generate: a text that goes on from a prompt, byte by byte.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "apps/cli/terminal.h"
#include "apps/text/text.h"
#include "engine/check.h"
#include "engine/file.h"
#include "engine/finite_guard.h"
#include "engine/text.h"
#include "models/generation.h"

namespace runnel {

uint8_t draw_byte(std::span<const float> logits, const DrawnBytes& how, double uniform) {
  std::vector<size_t> order(logits.size());  // the most probable bytes first
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](size_t i) { return logits[i]; });
  if (how.temperature <= 0) return static_cast<uint8_t>(order[0]);
  if (how.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(how.top_k)));
  std::vector<double> sums;  // of the probabilities, but for a factor
  double sum = 0;
  for (const size_t i : order) sums.push_back(sum += std::exp((logits[i] - logits[order[0]]) / how.temperature));
  if (how.top_p < 1) {
    const auto enough = std::ranges::lower_bound(sums, how.top_p * sum);
    sums.erase(enough + 1, sums.end());
  }
  const auto drawn = std::ranges::upper_bound(sums, uniform * sums.back());
  return static_cast<uint8_t>(
      order[static_cast<size_t>(std::min<int64_t>(drawn - sums.begin(), std::ssize(sums) - 1))]);
}

void continue_text(const AutoregressiveTransformer& model, const std::string& prompt, const DrawnBytes& how, Key key,
                   const std::function<bool(uint8_t)>& use) {
  constexpr int64_t chunk = 1024;
  const bool unbounded = is_unbounded(model);
  const int64_t longest = model.config.max_length;
  std::string text = prompt;  // of a model that has a longest sequence: what it has read
  std::unique_ptr<Decoder> decoder;
  const auto tokens = [&](std::string_view bytes) {
    std::vector<int32_t> values;
    for (const char byte : bytes) values.push_back(static_cast<uint8_t>(byte));
    return Indices(Shape{1, std::ssize(values)}, values, model.device());
  };
  // A decoder that has read all but the last byte of the text.
  const auto begin = [&] {
    decoder = make_decoder(model, 1);
    for (size_t first = 0; first + 1 < text.size(); first += chunk)
      decoder->read_all(tokens(std::string_view(text).substr(first, std::min<size_t>(chunk, text.size() - 1 - first))));
  };
  const auto keep_last = [&](int64_t count) {
    if (std::ssize(text) > count) text.erase(0, text.size() - static_cast<size_t>(count));
  };
  uint64_t drawn = 0;
  bool is_wanted = true;
  const auto draw_while_it_fits = [&] {
    while (is_wanted && (unbounded || std::ssize(text) <= longest)) {
      const std::vector<float> logits =
          finite_output(decoder->step(tokens(text.substr(text.size() - 1)).viewed_as(Shape{1})));
      const uint8_t byte = draw_byte(logits, how, key.uniform(drawn++));
      is_wanted = use(byte);
      unbounded ? text.assign(1, static_cast<char>(byte)) : text.append(1, static_cast<char>(byte));
    }
  };
  if (!unbounded) keep_last(longest);
  for (;;) {
    begin();
    with_helpers(*decoder, draw_while_it_fits);
    if (!is_wanted) return;
    keep_last((longest + 1) / 2);
  }
}

namespace {

struct GenerateOptions : ModelOptions {
  std::string prompt = "\n", prompt_file, stop;
  int64_t bytes = 500;
  bool exact = false;
  DrawnBytes how = {};

  Settings list() override {
    return extended(
        ModelOptions::list(),
        {{"prompt", &prompt, {}, "text to go on from; default: a line feed"},
         {"prompt-file", &prompt_file, {}, "file with that text; -: standard input"},
         {"bytes", &bytes, in_range(1, 2e9), "bytes to generate; a character of UTF-8 that they end in is completed"},
         {"exact", &exact, {}, "end after --bytes, even in the middle of a character"},
         {"stop", &stop, {}, "end before this text is generated"},
         {"temperature", &how.temperature, in_range(0, 100),
          "below 1: more probable bytes; 0: always the most probable"},
         {"top-k", &how.top_k, in_range(0, 256), "draw from so many of the most probable bytes; 0: all"},
         {"top-p", &how.top_p, in_range(0.001, 1),
          "draw from the most probable bytes that have this probability together"},
         json_flag()});
  }
  bool decodes() const override { return true; }
};

std::string read_prompt(const GenerateOptions& o) {
  constexpr size_t most = 64 << 20;
  if (o.prompt_file.empty()) return o.prompt;
  if (o.prompt_file != "-") return read_file(o.prompt_file, most);
  std::string text;
  std::vector<char> block(1 << 16);
  for (int64_t got; (got = read_some(STDIN_FILENO, block.data(), block.size())) != 0;) {
    check(got > 0 && text.size() < most, "the prompt on standard input cannot be read, or is longer than 64 MiB");
    text.append(block.data(), static_cast<size_t>(got));
  }
  return text;
}

// Whether a text ends in the middle of a character.
bool begun_character(std::string_view text) {
  for (size_t n = 1; n <= std::min<size_t>(3, text.size()); ++n) {
    const auto byte = static_cast<uint8_t>(text[text.size() - n]);
    if ((byte & 0xc0) == 0x80) continue;
    const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return n < length;
  }
  return false;
}

int generate_text(GenerateOptions& o) {
  const std::string prompt = read_prompt(o);
  check<UsageError>(!prompt.empty(), o.prompt_file.empty() ? "--prompt" : "--prompt-file",
                    ": an empty text; the model needs a byte to go on from");
  const LoadedTextModel loaded(o);
  using Clock = std::chrono::steady_clock;
  const auto begun = Clock::now();
  auto prompt_read = begun;
  std::string all, tail, held;  // all: for --json; tail: the last bytes; held: may be the beginning of --stop
  size_t written = 0;
  const bool is_raw = !isatty(STDOUT_FILENO);
  const auto write = [&](const std::string& text) {
    tail = (tail + text).substr(std::max<size_t>(3, tail.size() + text.size()) - 3);
    written += text.size();
    if (o.json) {
      all += text;
      return;
    }
    if (is_raw) return print_escapes(stdout, text);
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  const auto ends_like_stop = [&](size_t length) {  // whether its last bytes may be the beginning of --stop
    return held.size() >= length && o.stop.starts_with(held.substr(held.size() - length));
  };
  int64_t generated = 0;
  bool is_stopped = false;
  continue_text(loaded.model, prompt, o.how, key_for(o.seed, Purpose::sampling), [&](uint8_t byte) {
    if (generated++ == 0) prompt_read = Clock::now();
    held += static_cast<char>(byte);
    is_stopped = !o.stop.empty() && held.ends_with(o.stop);
    if (is_stopped) held.resize(held.size() - o.stop.size());
    size_t keep = is_stopped ? 0 : std::min(o.stop.size(), held.size());
    while (!ends_like_stop(keep)) --keep;
    write(held.substr(0, held.size() - keep));
    held.erase(0, held.size() - keep);
    if (is_stopped || !output_is_wanted()) return false;
    return generated < o.bytes || (!o.exact && generated < o.bytes + 3 && begun_character(tail + held));
  });
  write(held);
  const auto seconds = [](Clock::duration time) { return std::chrono::duration<double>(time).count(); };
  const double rate = generated > 1 ? static_cast<double>(generated - 1) / seconds(Clock::now() - prompt_read) : 0;
  if (o.json) {
    print_json({{"model", loaded.checkpoint.path.string()},
                {"step", loaded.checkpoint.step()},
                {"prompt", prompt},
                {"text", all},
                {"bytes", written},
                {"stopped", is_stopped},
                {"seed", o.seed},
                {"prompt_seconds", seconds(prompt_read - begun)},
                {"bytes_per_second", rate}});
    return 0;
  }
  std::fflush(stdout);
  if (!o.quiet)
    warn(fmt::format("\n{} bytes at {:.0f} bytes/s, after {} of prompt in {:.2f} s\n", written, rate, prompt.size(),
                     seconds(prompt_read - begun)));
  return 0;
}

}  // namespace

void add_text_generation(Subcommand text) {
  add_command<GenerateOptions>(text, "generate", "a text that goes on from a prompt", generate_text);
}

}  // namespace runnel
