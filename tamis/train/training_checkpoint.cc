#include "tamis/train/training_checkpoint.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <span>
#include <utility>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/models/checkpoint.h"
#include "tamis/nn/safetensors.h"

namespace tamis::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kStateFile = "trainer.json";

std::string checksum_text(std::string_view bytes) {
  return fmt::format("{:016x}", checksum(bytes));
}

json describe_file(const fs::path& file) {
  const MappedFile mapped(file);
  return {{"bytes", mapped.text().size()}, {"checksum", checksum_text(mapped.text())}};
}

void write_text(const fs::path& file, const std::string& text) {
  FileWriter writer(file);
  writer.write(text);
  writer.close();
}

/// Both moments under the names that the checkpoint gives the tensors they belong to; views of the optimizer's own.
std::vector<nn::NamedTensor> moment_tensors(const models::Model& model, const AdamW& optimizer) {
  std::vector<nn::NamedTensor> tensors;
  for (const auto& [prefix, moments] :
       {std::pair("exp_avg.", optimizer.first_moments()), std::pair("exp_avg_sq.", optimizer.second_moments())}) {
    for (const auto& [name, tensor] : model.checkpoint_tensors(moments)) tensors.push_back({prefix + name, tensor});
  }
  return tensors;
}

json state_to_json(const TrainingState& state) {
  return {{"step", state.step},     {"tokens", state.tokens},     {"seconds", state.seconds},
          {"recipe", state.recipe}, {"numerics", state.numerics}, {"data", state.checksums}};
}

}  // namespace

void save_training_checkpoint(const fs::path& directory, const models::Model& model, const AdamW& optimizer,
                              const text::Tokenizer& tokenizer, const TrainingState& state) {
  write_directory_atomic(directory, [&](const fs::path& place) {
    models::save_model(model, place);
    write_text(place / "tokenizer.json", tokenizer.to_json());
    const json generation = {{"do_sample", false}, {"eos_token_id", tokenizer.end_of_text()}};
    write_text(place / "generation_config.json", generation.dump(2) + "\n");
    nn::write_safetensors(place / "optimizer.safetensors", moment_tensors(model, optimizer));

    json trainer = state_to_json(state);
    for (const auto& entry : fs::directory_iterator(place)) {
      trainer["files"][entry.path().filename().string()] = describe_file(entry.path());
    }
    trainer["checksum"] = checksum_text(trainer.dump());
    write_text(place / kStateFile, trainer.dump(2) + "\n");
  });
}

std::string find_damage(const fs::path& directory) try {
  if (!fs::is_directory(directory)) return "is not a directory";
  json trainer = json::parse(read_file(directory / kStateFile), nullptr, /*allow_exceptions=*/false);
  if (!trainer.is_object() || !trainer.contains("checksum")) return fmt::format("{}: is not whole", kStateFile);
  const json own_checksum = trainer["checksum"];
  trainer.erase("checksum");
  if (own_checksum != checksum_text(trainer.dump())) return fmt::format("{}: checksum differs", kStateFile);
  for (const auto& [name, expected] : trainer["files"].items()) {
    const json found = describe_file(directory / name);
    if (found["bytes"] != expected["bytes"]) {
      return fmt::format("{}: has {} of {} bytes", name, found["bytes"].dump(), expected["bytes"].dump());
    }
    if (found["checksum"] != expected["checksum"]) return fmt::format("{}: checksum differs", name);
  }
  return "";
} catch (const Error& error) {
  return error.what();
}

TrainingState read_training_state(const fs::path& directory) {
  const json trainer = json::parse(read_file(directory / kStateFile));
  return {.step = trainer.at("step"),
          .tokens = trainer.at("tokens"),
          .seconds = trainer.at("seconds"),
          .recipe = trainer.at("recipe"),
          .checksums = trainer.at("data"),
          .numerics = trainer.value("numerics", json::object())};
}

void restore_optimizer(const fs::path& directory, const models::Model& model, AdamW& optimizer) {
  const fs::path path = directory / "optimizer.safetensors";
  const nn::SafetensorsFile file(path);
  for (const auto& [name, tensor] : moment_tensors(model, optimizer)) {
    const at::Tensor saved = file.tensor(name);
    if (saved.sizes() != tensor.sizes()) {
      fail(ExitCode::kInput, "{}: {} has shape {}, but the model needs {}", path.string(), name,
           fmt::format("[{}]", fmt::join(saved.sizes(), ", ")), fmt::format("[{}]", fmt::join(tensor.sizes(), ", ")));
    }
    tensor.copy_(saved);
  }
}

}  // namespace tamis::train
