#include "tamis/data/prompt_source.h"

#include <algorithm>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/base/random.h"
#include "tamis/data/permutation.h"
#include "tamis/data/streams.h"

namespace tamis::data {

PromptSource::PromptSource(std::string name, const text::Tokenizer& tokenizer, std::span<const PromptAnswer> pairs,
                           int64_t length, uint64_t seed)
    : name_(std::move(name)), length_(length), seed_(seed) {
  if (tokenizer.end_of_text() < 0) {
    fail(ExitCode::kUsage, "{}: answers end with an end-of-text token, which the {} tokenizer lacks", name_,
         tokenizer.name());
  }
  for (const PromptAnswer& pair : pairs) {
    const std::vector<int64_t> prompt = tokenizer.encode(pair.prompt);
    std::vector<int64_t> answer = tokenizer.encode(pair.answer);
    answer.push_back(tokenizer.end_of_text());
    // The last token is only a target, and the first one is only read.
    const auto room = length_ + 1 - static_cast<int64_t>(answer.size());
    if (room < 1 || prompt.size() + answer.size() < 2) {
      left_out_ += 1;
      continue;
    }
    const int64_t kept = std::min<int64_t>(static_cast<int64_t>(prompt.size()), room);
    cut_prompts_ += kept < static_cast<int64_t>(prompt.size()) ? 1 : 0;
    const auto first = static_cast<int64_t>(tokens_.size());
    tokens_.insert(tokens_.end(), prompt.end() - kept, prompt.end());
    tokens_.insert(tokens_.end(), answer.begin(), answer.end());
    pairs_.push_back({first, first + kept, static_cast<int64_t>(tokens_.size())});
  }
  int64_t used = length_;  // of the last sequence
  for (size_t p = 0; p < pairs_.size(); ++p) {
    const int64_t read = pairs_[p].end - pairs_[p].first - 1;
    if (used + read > length_) {
      sequences_.emplace_back(p, p);
      used = 0;
    }
    used += read;
    sequences_.back().second = p + 1;
  }
  if (pairs.empty()) fail(ExitCode::kInput, "{}: there is no pair of prompt and answer to learn from", name_);
  if (sequences_.empty()) {
    fail(ExitCode::kInput, "{}: none of its {} pairs of prompt and answer fits into a sequence of {} tokens", name_,
         pairs.size(), length_);
  }
}

Example PromptSource::sequence(uint64_t i) const {
  Example example{.tokens = std::vector<int64_t>(length_, 0),
                  .targets = std::vector<int64_t>(length_, kIgnore),
                  .document = std::vector<int32_t>(length_, 0)};
  const auto [first, last] = sequences_[i];
  int64_t at = 0;
  for (size_t p = first; p < last; ++p) {
    const Pair& pair = pairs_[p];
    const auto document = static_cast<int32_t>(p - first);
    for (int64_t t = pair.first; t + 1 < pair.end; ++t, ++at) {
      example.tokens[at] = tokens_[t];
      example.document[at] = document;
      if (t + 1 >= pair.answer) example.targets[at] = tokens_[t + 1];
    }
  }
  const auto padding = static_cast<int32_t>(last - first);
  std::fill(example.document.begin() + at, example.document.end(), padding);
  return example;
}

Example PromptSource::example(uint64_t index, int64_t length) const {
  if (length != length_) {
    fail(ExitCode::kUsage, "{}: was packed into sequences of {} tokens, but {} are asked for", name_, length_, length);
  }
  const uint64_t count = sequences_.size();
  const Permutation order(count, Random({kEpoch, seed_, index / count}).next());
  return sequence(order(index % count));
}

}  // namespace tamis::data
