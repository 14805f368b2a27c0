#include "tamis/data/recall.h"

#include <map>
#include <numeric>
#include <utility>

namespace tamis::data {
namespace {

/// `count` different numbers in [first, end), in random order: a partial Fisher-Yates shuffle.
std::vector<int64_t> draw_different(Random& random, int64_t first, int64_t end, int64_t count) {
  std::vector<int64_t> all(end - first);
  std::iota(all.begin(), all.end(), first);
  for (int64_t i = 0; i < count; ++i) std::swap(all[i], all[i + static_cast<int64_t>(random.below(end - first - i))]);
  all.resize(count);
  return all;
}

}  // namespace

std::vector<int64_t> draw_keys(Random& random, const Settings& settings, int64_t count) {
  return draw_different(random, 1, first_value(settings), count);
}

std::vector<int64_t> draw_values(Random& random, const Settings& settings, int64_t count) {
  return draw_different(random, first_value(settings), settings.at("vocab"), count);
}

std::optional<int64_t> solve_recall(std::span<const int64_t> read, const Settings& settings) {
  const auto is_key = [&](int64_t id) { return id >= 1 && id < first_value(settings); };
  const auto is_value = [&](int64_t id) { return id >= first_value(settings); };
  std::map<int64_t, int64_t> value_of;
  size_t t = 0;
  for (; t + 1 < read.size() && is_key(read[t]) && is_value(read[t + 1]); t += 2) value_of[read[t]] = read[t + 1];
  if (t >= read.size()) return std::nullopt;
  const auto found = value_of.find(read.back());
  return found == value_of.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace tamis::data
