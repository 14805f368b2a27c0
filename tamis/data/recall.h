#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tamis/base/random.h"
#include "tamis/data/task.h"

namespace tamis::data {

// Shared by MQAR and MQRAR: half of the ids are keys and half are values.
//
//   0                      neither; MQRAR's separator
//   1 .. floor(vocab / 2) - 1      keys
//   floor(vocab / 2) .. vocab - 1  values

inline int64_t first_value(const Settings& settings) {
  return settings.at("vocab") / 2;
}

/// Number of values.
inline int64_t count_values(const Settings& settings) {
  return settings.at("vocab") - first_value(settings);
}

/// `count` different keys, in random order.
std::vector<int64_t> draw_keys(Random& random, const Settings& settings, int64_t count);

/// `count` different values, in random order.
std::vector<int64_t> draw_values(Random& random, const Settings& settings, int64_t count);

/// The answer after the last id, from the ids alone: the sequence begins with key-value pairs, and a key after them is
/// a query for its latest value. None when the last id is not such a query.
std::optional<int64_t> solve_recall(std::span<const int64_t> read, const Settings& settings);

}  // namespace tamis::data
