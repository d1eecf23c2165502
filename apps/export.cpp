// runnel export: a trained model as one small file, as the web page in apps/web reads it.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <utility>

#include "apps/cli/subcommand.h"
#include "apps/cli/trained_model.h"
#include "engine/check.h"

namespace runnel {
namespace {

namespace fs = std::filesystem;

// Moments and readers' states, which only a run that goes on needs.
bool is_of_training(const NamedTensor& tensor) {
  return tensor.name.starts_with("optimizer.") || tensor.name.starts_with("memory.");
}

int export_model(const std::string& model, const std::string& out) {
  check<UsageError>(!out.empty(), "--out is needed: the .safetensors file to write");
  check<UsageError>(fs::path(out).extension() == ".safetensors", "--out ", out,
                    ": give a name that ends in .safetensors");
  std::error_code none;
  check(!fs::exists(fs::symlink_status(out, none)), "--out ", out,
        " exists already; choose another name, or remove it");
  Checkpoint checkpoint = trained_model(model, "");
  const fs::path from = std::exchange(checkpoint.path, out);
  std::erase_if(checkpoint.content.tensors, is_of_training);
  // Of a path of this machine only the last name: the file may be published.
  if (const auto data = checkpoint.config.find("data"); data != checkpoint.config.end() && data->is_string())
    *data = (fs::path(data->get<std::string>()) / "").parent_path().filename().string();
  save_checkpoint(checkpoint, MatrixStorage::int8);
  fmt::print("{}: {} tensors of {}, matrices in int8, {:.2f} MB\n", out, checkpoint.content.tensors.size(),
             from.string(), static_cast<double>(fs::file_size(out)) / 1e6);
  return 0;
}

}  // namespace

void add_export(Subcommand program) {
  program.add("export", "a trained model as one small file: matrices in int8, without the optimizer's moments",
              [](Subcommand command) {
                const auto model = std::make_shared<std::string>(), out = std::make_shared<std::string>();
                command.add_flags([=] {
                  return Settings{
                      {"model", model.get(), {}, "a run folder or a .safetensors file"},
                      {"out", out.get(), {}, ".safetensors file to write, which every command with --model reads"}};
                });
                command.when_parsed([=]() -> Command { return [=] { return export_model(*model, *out); }; });
              });
}

}  // namespace runnel
