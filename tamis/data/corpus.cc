#include "tamis/data/corpus.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"
#include "tamis/data/shard.h"
#include "tamis/data/token_files.h"

namespace tamis::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string hex(uint64_t number) {
  return fmt::format("{:016x}", number);
}

json to_json(const CorpusSplit& split) {
  json shards = json::array();
  for (const ShardEntry& shard : split.shards) {
    shards.push_back({{"file", shard.file},
                      {"tokens", shard.tokens},
                      {"documents", shard.documents},
                      {"checksum", hex(shard.digest)}});
  }
  return {{"tokens", split.tokens()}, {"documents", split.documents()}, {"shards", shards}};
}

/// Reads a manifest; every failure names the file and the key.
class ManifestReader {
 public:
  explicit ManifestReader(const fs::path& file) : name_(file.string()), content_(read_json(file)) {}

  Manifest read() const {
    if (text_at(content_, "format") != kCorpusFormat) refuse("format", fmt::format("\"{}\"", kCorpusFormat), content_);
    const int64_t version = number(content_, "version");
    if (version != kCorpusVersion) {
      fail(ExitCode::kInput, "{}: has version {} of the format; this program reads version {}", name_, version,
           kCorpusVersion);
    }
    Manifest manifest;
    const json& tokenizer = object(content_, "tokenizer");
    manifest.tokenizer_digest = text(tokenizer, "digest");
    manifest.tokenizer_name = text(tokenizer, "name");
    manifest.vocab_size = number(tokenizer, "vocab_size");
    manifest.training = split("training");
    manifest.validation = split("validation");
    manifest.rest = content_;
    for (const char* key : {"format", "version", "tokenizer", "training", "validation"}) manifest.rest.erase(key);
    return manifest;
  }

 private:
  [[noreturn]] void refuse(const char* key, const std::string& expected, const json& from) const {
    const json found = from.is_object() ? from.value(key, json()) : json();
    fail(ExitCode::kInput, "{}: {} must be {}, but is {}; prepare the corpus again", name_, key, expected,
         found.is_null() ? "missing" : shown(found));
  }

  const json& object(const json& from, const char* key) const {
    if (!from.is_object() || !from.contains(key) || !from[key].is_object()) refuse(key, "an object", from);
    return from[key];
  }

  int64_t number(const json& from, const char* key) const {
    constexpr int64_t kMost = int64_t{1} << 48;
    if (!from.is_object() || !from.contains(key) || !from[key].is_number_integer() || from[key].get<int64_t>() < 0 ||
        from[key].get<int64_t>() > kMost) {
      refuse(key, "a whole number", from);
    }
    return from[key].get<int64_t>();
  }

  std::string text(const json& from, const char* key) const {
    if (!from.is_object() || !from.contains(key) || !from[key].is_string()) refuse(key, "a text", from);
    return from[key].get<std::string>();
  }

  CorpusSplit split(const char* name) const {
    const json& from = object(content_, name);
    CorpusSplit split;
    if (!from.contains("shards") || !from["shards"].is_array()) refuse("shards", "a list", from);
    for (const json& entry : from["shards"]) {
      ShardEntry shard{text(entry, "file"), number(entry, "tokens"), number(entry, "documents"), 0};
      const bool plain =
          !shard.file.empty() && shard.file.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
      if (!plain) refuse("file", "the name of a file next to it", entry);
      const std::string digest = text(entry, "checksum");
      char* end = nullptr;
      shard.digest = std::strtoull(digest.c_str(), &end, 16);
      if (hex(shard.digest) != digest) refuse("checksum", "16 hexadecimal digits", entry);
      split.shards.push_back(std::move(shard));
    }
    return split;
  }

  std::string name_;
  json content_;
};

/// The shards of a corpus, or a token file, as parts of one array.
class Opener {
 public:
  explicit Opener(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  OpenedTokens open(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      if (is_token_file(path)) {
        training_.push_back(open_token_file(path, tokenizer_.end_of_text()));
        digests_ += hex(token_file_digest(path));
      } else {
        open_corpus(path);
      }
    }
    const std::string name = fmt::format("{}", fmt::join(paths, ", "));
    OpenedTokens opened;
    opened.training = std::make_shared<JoinedTokens>(name, std::move(training_));
    if (!validation_.empty()) {
      opened.validation = std::make_shared<JoinedTokens>(name + " (validation)", std::move(validation_));
    }
    opened.digest = hex(fast_checksum(digests_));
    return opened;
  }

 private:
  void open_corpus(const std::string& path) {
    const Manifest manifest = read_manifest(path);
    if (manifest.tokenizer_digest != tokenizer_.digest()) {
      fail(
          ExitCode::kInput,
          "{}: was prepared with another tokenizer ({}, {} tokens) than this run's ({}, {} tokens); set data.tokenizer "
          "= \"{}\", or prepare the corpus again",
          path, manifest.tokenizer_name, manifest.vocab_size, tokenizer_.name(), tokenizer_.vocab_size(),
          (fs::path(path) / "tokenizer.json").string());
    }
    training_.push_back(open_split(path, manifest, manifest.training));
    for (const ShardEntry& shard : manifest.training.shards) digests_ += hex(shard.digest);
    if (!manifest.validation.shards.empty()) validation_.push_back(open_split(path, manifest, manifest.validation));
  }

  const text::Tokenizer& tokenizer_;
  std::vector<std::unique_ptr<TokenArray>> training_, validation_;
  std::string digests_;
};

}  // namespace

int64_t CorpusSplit::tokens() const {
  int64_t sum = 0;
  for (const ShardEntry& shard : shards) sum += shard.tokens;
  return sum;
}

int64_t CorpusSplit::documents() const {
  int64_t sum = 0;
  for (const ShardEntry& shard : shards) sum += shard.documents;
  return sum;
}

json to_json(const Manifest& manifest) {
  json content = manifest.rest;
  content["format"] = kCorpusFormat;
  content["version"] = kCorpusVersion;
  content["tokenizer"] = {
      {"digest", manifest.tokenizer_digest}, {"name", manifest.tokenizer_name}, {"vocab_size", manifest.vocab_size}};
  content["training"] = to_json(manifest.training);
  content["validation"] = to_json(manifest.validation);
  return content;
}

Manifest read_manifest(const fs::path& directory) {
  const fs::path file = directory / kCorpusManifest;
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) {
    fail(ExitCode::kInput, "{}: {}; expected a directory that `tamis data prepare` wrote, or a .bin or .npy file",
         directory.string(), fs::exists(directory, ignored) ? "is not a directory" : "does not exist");
  }
  if (!fs::exists(file, ignored)) {
    const bool begun = fs::exists(directory / "progress.json", ignored);
    fail(ExitCode::kInput, "{}: {}", directory.string(),
         begun ? "its preparation is unfinished; run the same `tamis data prepare` again to complete it"
               : "has no manifest.json; make a corpus with `tamis data prepare FILES --out DIR`");
  }
  return ManifestReader(file).read();
}

std::unique_ptr<TokenArray> open_split(const fs::path& directory, const Manifest& manifest, const CorpusSplit& split) {
  std::vector<std::unique_ptr<TokenArray>> shards;
  for (const ShardEntry& entry : split.shards) {
    auto shard = std::make_unique<Shard>(directory / entry.file);
    if (shard->tokenizer_digest() != manifest.tokenizer_digest) {
      fail(ExitCode::kInput,
           "{}: holds tokens of another tokenizer than its corpus (digest {}, expected {}); prepare the "
           "corpus again",
           shard->name(), shown(shard->tokenizer_digest()), manifest.tokenizer_digest);
    }
    if (shard->digest() != entry.digest || shard->size() != entry.tokens || shard->documents() != entry.documents) {
      fail(ExitCode::kInput, "{}: is not the shard that {} names: the checksum differs; prepare the corpus again",
           shard->name(), kCorpusManifest);
    }
    shards.push_back(std::move(shard));
  }
  return std::make_unique<JoinedTokens>(directory.string(), std::move(shards));
}

OpenedTokens open_tokens(const std::vector<std::string>& paths, const text::Tokenizer& tokenizer) {
  return Opener(tokenizer).open(paths);
}

}  // namespace tamis::data
