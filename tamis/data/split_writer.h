#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "tamis/data/corpus.h"
#include "tamis/data/shard.h"

namespace tamis::data {

/// Writes one part of a corpus: NAME-00000.tokens, NAME-00001.tokens, ... A shard ends with the document that reaches
/// `shard_tokens`. Throws ExitCode::kStorage.
class SplitWriter {
 public:
  SplitWriter(std::filesystem::path directory, std::string name, int token_bytes, std::string tokenizer_digest,
              int64_t shard_tokens);

  void append(std::span<const int64_t> tokens);
  void end_document();
  /// Completes the last shard.
  void finish();

  const CorpusSplit& split() const { return split_; }
  /// Including those of the shard being written.
  int64_t tokens() const;
  int64_t documents() const;

  /// Makes everything durable and returns what restore() of another writer with the same arguments goes on from.
  nlohmann::json save();
  /// Throws nlohmann's exceptions when `saved` is no such value.
  void restore(const nlohmann::json& saved);

 private:
  std::filesystem::path next_file() const;
  ShardWriter& writer();
  void finish_shard();

  std::filesystem::path directory_;
  std::string name_;
  int token_bytes_;
  std::string tokenizer_digest_;
  int64_t shard_tokens_;
  CorpusSplit split_;
  std::unique_ptr<ShardWriter> writer_;
};

}  // namespace tamis::data
