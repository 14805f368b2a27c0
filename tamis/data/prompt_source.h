#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tamis/data/prompt_answer.h"
#include "tamis/data/source.h"
#include "tamis/text/tokenizer.h"

namespace tamis::data {

/// Supervised fine-tuning: sequences of prompts and answers, with a loss on the answers and the end-of-text token
/// behind each of them.
///
/// Pairs are packed in their order, as many into a sequence as fit; Example::document tells them apart, and padding at
/// the end never counts. Of a prompt that does not fit into a sequence with its answer, the beginning is left out. An
/// epoch has every sequence once, in an order that is a Permutation of (seed, epoch).
class PromptSource : public Source {
 public:
  /// Throws ExitCode::kUsage when the tokenizer has no end-of-text token, ExitCode::kInput when there is no pair that
  /// fits into `length` tokens.
  PromptSource(std::string name, const text::Tokenizer& tokenizer, std::span<const PromptAnswer> pairs, int64_t length,
               uint64_t seed);

  std::string name() const override { return name_; }
  /// `length` must be that of the constructor.
  Example example(uint64_t index, int64_t length) const override;
  bool is_sequential() const override { return true; }
  std::optional<uint64_t> examples_per_epoch(int64_t) const override { return sequences_.size(); }

  /// Sequence i = 0, 1, ... in the order of the pairs.
  Example sequence(uint64_t i) const;
  uint64_t sequences() const { return sequences_.size(); }
  int64_t cut_prompts() const { return cut_prompts_; }  // pairs without the beginning of their prompt
  int64_t left_out() const { return left_out_; }        // pairs whose answer alone is too long
  const std::vector<int32_t>& tokens() const { return tokens_; }

 private:
  /// Tokens [first, end) of a pair, the end-of-text token included; the answer begins at `answer`.
  struct Pair {
    int64_t first, answer, end;
  };

  std::string name_;
  int64_t length_;
  uint64_t seed_;
  std::vector<int32_t> tokens_;
  std::vector<Pair> pairs_;
  std::vector<std::pair<size_t, size_t>> sequences_;  // pairs [first, last) of each sequence
  int64_t cut_prompts_ = 0, left_out_ = 0;
};

}  // namespace tamis::data
