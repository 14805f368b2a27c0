#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tamis/base/random.h"
#include "tamis/data/task.h"

namespace tamis::data {

// What MQAR and MQRAR share: the ids, half of them keys and half values.
//
//   0                      nothing
//   1 .. floor(vocab / 2) - 1      keys
//   floor(vocab / 2) .. vocab - 1  values

inline int64_t first_value(const Settings& settings) {
  return settings.at("vocab") / 2;
}

/// How many values there are.
inline int64_t count_values(const Settings& settings) {
  return settings.at("vocab") - first_value(settings);
}

/// `count` different keys, in random order.
std::vector<int64_t> draw_keys(Random& random, const Settings& settings, int64_t count);

/// `count` different values, in random order.
std::vector<int64_t> draw_values(Random& random, const Settings& settings, int64_t count);

/// Pairs of key and value come first, as long as a key is followed by a value. After them a key asks for the value that
/// was last given to it; a key that has none, and everything else, asks for nothing.
std::optional<int64_t> solve_recall(std::span<const int64_t> read, const Settings& settings);

}  // namespace tamis::data
