#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tamis/data/source.h"
#include "tamis/data/token_array.h"

namespace tamis::data {

/// The order in which a TokenSource gives its sequences.
enum class Sampling {
  kSequential,  // contiguous sequences that do not overlap, each once in an epoch
  kRandom,      // each begins at a uniformly drawn token; they overlap
};

struct TokenSourceOptions {
  Sampling sampling = Sampling::kSequential;
  bool documents = false;  // fill Example::document and predict no token of a document from another one
  uint64_t seed = 0;
  int64_t vocab_size = 0;  // ids must be below; 0: not checked
};

/// Tokens [start, start + length) of `tokens`, with the tokens that follow as targets. With `documents` each token gets
/// the number of its document in the sequence. The end-of-text token belongs to the document that it ends and is
/// predicted like any other; the first token of the next document has nothing in its document to be predicted from, so
/// the target of the end-of-text token is kIgnore. Throws ExitCode::kInput for an id outside of the vocabulary.
Example read_example(const TokenArray& tokens, int64_t start, int64_t length, const TokenSourceOptions& options);

/// Training sequences from a TokenArray.
///
/// Sequential: with N tokens there are n = floor((N - 1) / length) sequences; number i holds tokens [i length,
/// (i + 1) length) and is followed by one more target. The last (N - 1) mod length tokens are never used. Example
/// `index` belongs to epoch index / n; each epoch has every sequence once, in an order that is a Permutation of (seed,
/// epoch), so that any example is found in constant time.
class TokenSource : public Source {
 public:
  TokenSource(std::shared_ptr<const TokenArray> tokens, const TokenSourceOptions& options);

  std::string name() const override { return tokens_->name(); }
  /// Throws ExitCode::kInput with both sizes when there are fewer than `length` + 1 tokens.
  Example example(uint64_t index, int64_t length) const override;
  bool is_sequential() const override { return options_.sampling == Sampling::kSequential; }
  std::optional<uint64_t> examples_per_epoch(int64_t length) const override {
    return is_sequential() ? std::optional<uint64_t>(sequences(length)) : std::nullopt;
  }
  /// The sequences of an epoch.
  int64_t sequences(int64_t length) const;

 private:
  std::shared_ptr<const TokenArray> tokens_;
  TokenSourceOptions options_;
};

}  // namespace tamis::data
