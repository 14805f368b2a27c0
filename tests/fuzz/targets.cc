#include "tests/fuzz/targets.h"

#include <ATen/ATen.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"
#include "tamis/base/utf8.h"
#include "tamis/infer/score.h"
#include "tamis/models/manifest.h"
#include "tamis/models/model.h"
#include "tamis/nn/safetensors.h"
#include "tamis/text/huggingface_tokenizer.h"
#include "tamis/text/tokenizer.h"
#include "tamis/train/recipe.h"
#include "tamis/train/toml.h"
#include "tamis/train/training_checkpoint.h"

namespace tamis::fuzz {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void found(const std::string& what) {
  fmt::print(stderr, "{}\n", what);
  std::abort();
}

/// A file in memory that can be opened by path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : descriptor_(memfd_create("input", MFD_CLOEXEC)) {
    if (descriptor_ < 0 || write(descriptor_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      found("memfd_create: no memory");
    }
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  fs::path path() const { return fmt::format("/proc/self/fd/{}", descriptor_); }

 private:
  int descriptor_;
};

/// A temporary directory, for readers that need files with certain names.
class Directory {
 public:
  Directory() {
    std::string name = (fs::temp_directory_path() / "tamis-fuzz-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) found(name + ": cannot be made");
    path_ = name;
  }
  ~Directory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  void write(const std::string& name, std::string_view bytes) const { FileWriter(path_ / name).write(bytes); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// config.json: completing a completed configuration must not change it.
void read_config(std::string_view bytes) {
  const nlohmann::json config = models::complete_config(parse_json(bytes, "config.json", /*most_levels=*/8));
  if (models::complete_config(config) != config) found("completing a complete configuration changes it");
}

/// The byte tokenizer keeps every byte; others must take any text and return their own ids. The Rust library is linked
/// here too, without instrumentation: what it refuses or panics at is an error of one line.
void read_tokenizer(std::string_view bytes) try {
  const MemoryFile file(bytes);
  const auto tokenizer = text::load_tokenizer(file.path());
  const std::vector<int64_t> ids = tokenizer->encode("a\xff b <|endoftext|>\n");
  if (tokenizer->name() == "byte" && tokenizer->decode(ids) != "a\xff b <|endoftext|>\n") found("bytes are lost");
  const auto decoder = tokenizer->stream_decoder();
  for (const int64_t id : ids) {
    if (!is_utf8(decoder->push(id))) found("a piece of text that is not UTF-8");
  }
} catch (const Error& error) {
  // Without cargo the build refuses all tokenizers but one.
  if (text::has_huggingface_tokenizers() || error.code() != ExitCode::kRuntime) throw;
}

void read_safetensors(std::string_view bytes) {
  const MemoryFile file(bytes);
  const nn::SafetensorsFile tensors(file.path());
  for (const std::string& name : tensors.names()) {
    if (tensors.tensor(name).sizes() != tensors.shape(name)) found("a tensor has a shape that differs from its entry");
  }
}

/// trainer.json: checks its digests, then reads its values even if the digests are wrong.
void read_trainer(std::string_view bytes) {
  static const Directory directory;
  static const std::vector<std::string> kFiles = {"config.json"};
  for (const char* name : {"config.json", "model.safetensors"}) directory.write(name, "");
  directory.write("trainer.json", bytes);
  static_cast<void>(models::find_damage(directory.path(), kFiles));
  const train::TrainingState state = train::read_training_state(directory.path());
  if (state.step < 0 || state.tokens < 0) found("negative steps or tokens");
  static const nlohmann::json kNow = train::to_json(train::Recipe());
  static_cast<void>(train::first_difference(state.recipe, kNow));
  static_cast<void>(train::load_run_recipe(directory.path()));
}

/// An accepted recipe must be unchanged after writing and reading it again.
void read_recipe(std::string_view bytes) {
  const MemoryFile file(bytes);
  const nlohmann::json recipe = train::to_json(train::load_recipe(file.path()));
  const MemoryFile written(train::to_toml(recipe));
  if (train::to_json(train::load_recipe(written.path())) != recipe) found("a recipe changes when it is written");
}

void read_token_ids(std::string_view bytes) {
  const MemoryFile file(bytes);
  for (const int64_t id : infer::read_ids(file.path(), /*vocab_size=*/257)) {
    if (id < 0 || id >= 257) found("a token beyond the vocabulary");
  }
}

}  // namespace

std::span<const Target> targets() {
  static const std::vector<Target> kTargets = {{"config", read_config},           {"tokenizer", read_tokenizer},
                                               {"safetensors", read_safetensors}, {"trainer", read_trainer},
                                               {"recipe", read_recipe},           {"token_ids", read_token_ids}};
  return kTargets;
}

void run(const Target& target, std::string_view bytes) try { target.read(bytes); } catch (const Error& error) {
  const std::string text = error.what();
  // A name in the input, which a message may quote, is not the library's.
  const auto is_in = [](std::string_view whole) { return whole.find("json.exception") != std::string_view::npos; };
  if (is_in(text) && !is_in(bytes)) found("an error text of the JSON library: " + text);
  if (text.size() > 4000) found(fmt::format("a message of {} bytes", text.size()));
  if (error.code() != ExitCode::kInput && error.code() != ExitCode::kUsage) found("an unexpected exit code: " + text);
}

}  // namespace tamis::fuzz
