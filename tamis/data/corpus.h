#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tamis/data/token_array.h"
#include "tamis/text/tokenizer.h"

// A prepared corpus is a directory that `tamis data prepare` wrote:
//
//   manifest.json              written last: a directory without it is unfinished
//   tokenizer.json             of the tokenizer that made the tokens
//   training-00000.tokens ...  shards (shard.h); validation-00000.tokens ... for the documents held out, if any

namespace tamis::data {

inline constexpr const char* kCorpusManifest = "manifest.json";
inline constexpr const char* kCorpusFormat = "tamis-corpus";
inline constexpr int64_t kCorpusVersion = 1;

/// A shard in the manifest.
struct ShardEntry {
  std::string file;
  int64_t tokens = 0;
  int64_t documents = 0;
  uint64_t digest = 0;  // Shard::digest
};

/// One part of a corpus: training or validation.
struct CorpusSplit {
  std::vector<ShardEntry> shards;
  int64_t tokens() const;
  int64_t documents() const;
};

struct Manifest {
  std::string tokenizer_digest;
  std::string tokenizer_name;
  int64_t vocab_size = 0;
  CorpusSplit training, validation;
  nlohmann::json rest = nlohmann::json::object();  // how it was made: sources, options, records
};

nlohmann::json to_json(const Manifest& manifest);

/// Throws ExitCode::kInput when the directory holds no finished corpus or its manifest cannot be read.
Manifest read_manifest(const std::filesystem::path& directory);

/// Opens the shards of a split. Throws ExitCode::kInput when a shard is missing, damaged, not the one of the manifest,
/// or of another tokenizer than `manifest` says.
std::unique_ptr<TokenArray> open_split(const std::filesystem::path& directory, const Manifest& manifest,
                                       const CorpusSplit& split);

/// Data of a recipe: prepared corpora and token files (token_files.h), one after the other.
struct OpenedTokens {
  std::shared_ptr<const TokenArray> training;
  std::shared_ptr<const TokenArray> validation;  // the held-out documents of the corpora; null: there are none
  std::string digest;                            // of what training reads
};

/// Throws ExitCode::kInput when a path cannot be read, and when a corpus was made with another tokenizer.
OpenedTokens open_tokens(const std::vector<std::string>& paths, const text::Tokenizer& tokenizer);

}  // namespace tamis::data
