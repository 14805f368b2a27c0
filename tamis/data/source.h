#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tamis::data {

/// A target that the loss ignores.
inline constexpr int64_t kIgnore = -100;

/// One training sequence: the model reads tokens[0..n) and predicts targets[0..n), where targets[t] is the token after
/// tokens[t], or kIgnore.
struct Example {
  std::vector<int64_t> tokens;
  std::vector<int64_t> targets;
  /// Of each token, the number of its document in this sequence, counted from 0 and never falling: a model must not let
  /// a token see those of another document. Empty: all tokens belong together.
  std::vector<int32_t> document = {};
};

/// A stream of training sequences with random access: example `index` depends only on the source and the index, so a
/// resumed run needs to know only how many examples it has used.
class Source {
 public:
  virtual ~Source() = default;
  virtual std::string name() const = 0;
  /// Exactly `length` tokens and targets. Distinct indices give independent examples.
  virtual Example example(uint64_t index, int64_t length) const = 0;
  /// True when the source gives everything once before it repeats anything, provided that the indices are consecutive.
  virtual bool is_sequential() const { return false; }
  /// Examples after which a sequential source repeats; unset for sources without epochs.
  virtual std::optional<uint64_t> examples_per_epoch(int64_t /*length*/) const { return std::nullopt; }
};

}  // namespace tamis::data
