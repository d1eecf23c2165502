// The options of every command that computes: device, precision, threads and seed.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/device.h"
#include "engine/random.h"
#include "models/settings.h"

namespace runnel {

struct RuntimeOptions {
  std::string device = "auto";
  std::string precision = "auto";
  int64_t threads = 0;  // 0: all cores
  uint64_t seed = 1;
  bool quiet = false;
  bool json = false;  // of commands that list json_flag()

  virtual ~RuntimeOptions() = default;
  virtual bool decodes() const { return false; }  // only, with a model: then --precision may be int8
  virtual Settings list();                        // the flags; those that derive append their own

  Setting quiet_flag() { return {"quiet", &quiet, {}, "print results, warnings and errors, but no progress"}; }
  Setting json_flag() { return {"json", &json, {}, "print one JSON object instead of text; progress goes to stderr"}; }

  // Sets threads, device, precision and --quiet. Throws UsageError or Error if there is no such device or it cannot do
  // that.
  void prepare();
  Device chosen_device() const { return device.starts_with("cuda") ? Device::cuda : Device::cpu; }
};

// Names the data that are left out on stderr: each as "NAME: REASON", all of them or, if they are many,
// the first five and the file `list` that has all of them.
void name_left_out(const std::string& sentence, const std::vector<std::string>& all, const std::filesystem::path& list);
// A sentence for a machine whose load average says that other programs use its cores, else "".
std::string about_load(double load, int64_t cores);

// The purposes of random numbers; each has a key of its own.
enum class Purpose : uint64_t { initialisation, training, validation, sampling, dropout };
inline Key key_for(uint64_t seed, Purpose purpose) { return Key{seed}.fold(static_cast<uint64_t>(purpose)); }

}  // namespace runnel
