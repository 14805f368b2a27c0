#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tamis/data/token_array.h"
#include "tamis/data/token_source.h"
#include "tamis/text/tokenizer.h"

namespace tamis::data {

enum class Split { kTraining, kValidation };

struct TextFileOptions {
  std::vector<std::filesystem::path> files;  // read in this order, with an end-of-text token between them
  double validation_fraction = 0.1;          // fraction of the tokens, at the end, that is held out; 0: none
  Split split = Split::kTraining;
  uint64_t seed = 0;
  Sampling sampling = Sampling::kRandom;
  bool documents = false;  // each file is a document; see TokenSourceOptions
};

/// Sequences of plain text that is tokenized and kept in memory. The two splits are disjoint.
class TextFileSource : public Source {
 public:
  /// Throws ExitCode::kInput when a file is missing, empty or not a regular file, ExitCode::kUsage for bad options.
  TextFileSource(const text::Tokenizer& tokenizer, const TextFileOptions& options);

  std::string name() const override { return tokens_->name(); }
  /// Throws ExitCode::kInput with both sizes when the split is shorter than `length` + 1 tokens.
  Example example(uint64_t index, int64_t length) const override { return source_.example(index, length); }
  bool is_sequential() const override { return source_.is_sequential(); }
  std::optional<uint64_t> examples_per_epoch(int64_t length) const override {
    return source_.examples_per_epoch(length);
  }
  /// The tokens of the split, in order.
  const std::vector<int32_t>& tokens() const { return tokens_->tokens(); }
  std::shared_ptr<const TokenArray> array() const { return tokens_; }

 private:
  std::shared_ptr<const MemoryTokens> tokens_;
  TokenSource source_;
};

}  // namespace tamis::data
