#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tamis::data {

/// Training target that counts nothing in the loss.
inline constexpr int64_t kIgnore = -100;

/// One training sequence: the model reads tokens[0..n) and is asked for targets[0..n), targets[t] being the token after
/// tokens[t], or kIgnore.
struct Example {
  std::vector<int64_t> tokens;
  std::vector<int64_t> targets;
};

/// A stream of training sequences with random access: example `index` of a source is always the same, whoever asks and
/// in whatever order, so a run resumes by knowing only how many it has used.
class Source {
 public:
  virtual ~Source() = default;
  virtual std::string name() const = 0;
  /// Exactly `length` tokens and targets. Distinct indices give independent examples.
  virtual Example example(uint64_t index, int64_t length) const = 0;
};

}  // namespace tamis::data
