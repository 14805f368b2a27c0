#include "tamis/data/token_source.h"

#include <algorithm>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/base/random.h"
#include "tamis/data/permutation.h"
#include "tamis/data/streams.h"

namespace tamis::data {

Example read_example(const TokenArray& tokens, int64_t start, int64_t length, const TokenSourceOptions& options) {
  std::vector<int64_t> window(length + 1);
  tokens.read(start, window);
  if (options.vocab_size > 0) {
    const auto wrong =
        std::find_if(window.begin(), window.end(), [&](int64_t id) { return id < 0 || id >= options.vocab_size; });
    if (wrong != window.end()) {
      fail(ExitCode::kInput,
           "{}: token {} is {}, but the tokenizer has the ids 0..{}; were these tokens made with another tokenizer?",
           tokens.name(), start + (wrong - window.begin()), *wrong, options.vocab_size - 1);
    }
  }
  Example example{.tokens = {window.begin(), window.end() - 1}, .targets = {window.begin() + 1, window.end()}};
  if (!options.documents) return example;
  example.document.resize(length);
  int32_t document = 0;
  int64_t done = 0;
  for (const int64_t begin : tokens.document_starts(start, start + length)) {
    std::fill(example.document.begin() + done, example.document.begin() + (begin - start), document++);
    done = begin - start;
    example.targets[done - 1] = kIgnore;
  }
  std::fill(example.document.begin() + done, example.document.end(), document);
  return example;
}

TokenSource::TokenSource(std::shared_ptr<const TokenArray> tokens, const TokenSourceOptions& options)
    : tokens_(std::move(tokens)), options_(options) {}

int64_t TokenSource::sequences(int64_t length) const {
  return std::max<int64_t>(tokens_->size() - 1, 0) / length;
}

Example TokenSource::example(uint64_t index, int64_t length) const {
  if (length < 1) {
    fail(ExitCode::kUsage, "{}: sequences must have at least one token, but the length is {}", name(), length);
  }
  const int64_t size = tokens_->size();
  if (size < length + 1) {
    fail(ExitCode::kInput,
         "{}: holds {} tokens, but a sequence of {} needs {}; use more text, shorter sequences or another "
         "validation_fraction",
         name(), size, length, length + 1);
  }
  if (options_.sampling == Sampling::kRandom) {
    const auto start = Random({kTextFileWindow, options_.seed, index}).below(static_cast<uint64_t>(size - length));
    return read_example(*tokens_, static_cast<int64_t>(start), length, options_);
  }
  const auto count = static_cast<uint64_t>(sequences(length));
  const Permutation order(count, Random({kEpoch, options_.seed, index / count}).next());
  return read_example(*tokens_, static_cast<int64_t>(order(index % count)) * length, length, options_);
}

}  // namespace tamis::data
