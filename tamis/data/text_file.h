#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tamis/data/source.h"
#include "tamis/text/tokenizer.h"

namespace tamis::data {

enum class Split { kTraining, kValidation };

struct TextFileOptions {
  std::vector<std::filesystem::path> files;  // read in this order, with an end-of-text token between them
  double validation_fraction = 0.1;          // fraction of the tokens, at the end, that is held out; 0: none
  Split split = Split::kTraining;
  uint64_t seed = 0;
};

/// Random crops of plain text: example `index` starts at a uniformly drawn token of the split. The two splits are
/// disjoint.
class TextFileSource : public Source {
 public:
  /// Throws ExitCode::kInput when a file is missing, empty or not a regular file, ExitCode::kUsage for bad options.
  TextFileSource(const text::Tokenizer& tokenizer, const TextFileOptions& options);

  std::string name() const override { return name_; }
  /// Throws ExitCode::kInput with both sizes when the split is shorter than `length` + 1 tokens.
  Example example(uint64_t index, int64_t length) const override;
  /// The tokens of the split, in order.
  const std::vector<int32_t>& tokens() const { return tokens_; }

 private:
  std::string name_;
  uint64_t seed_;
  std::vector<int32_t> tokens_;
};

}  // namespace tamis::data
