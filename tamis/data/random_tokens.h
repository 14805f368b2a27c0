#pragma once

#include <cstdint>
#include <string>

#include "tamis/base/random.h"
#include "tamis/data/source.h"

namespace tamis::data {

/// Uniform random tokens; each is to predict the next one. For measurements, which need no text.
class RandomTokens final : public Source {
 public:
  explicit RandomTokens(int64_t vocab_size) : vocab_size_(static_cast<uint64_t>(vocab_size)) {}
  std::string name() const override { return "random"; }
  Example example(uint64_t index, int64_t length) const override {
    Random random({index});
    Example example;
    auto token = static_cast<int64_t>(random.below(vocab_size_));
    for (int64_t t = 0; t < length; ++t) {
      example.tokens.push_back(token);
      token = static_cast<int64_t>(random.below(vocab_size_));
      example.targets.push_back(token);
    }
    return example;
  }

 private:
  uint64_t vocab_size_;
};

}  // namespace tamis::data
