#include "tamis/study/match.h"

#include <algorithm>
#include <vector>

namespace tamis::study {
namespace {

struct SizingKey {
  const char* name;
  int64_t step;        // values are multiples of this
  int64_t most_steps;  // a power of two
};

constexpr double kNear = 0.009;

std::vector<SizingKey> sizing_keys(const nlohmann::json& config) {
  if (config.contains("intermediate_size")) return {{"intermediate_size", 1, 1 << 20}};
  return {{"value_dim", 1, 1 << 12}, {"key_dim", 2, 1 << 11}, {"num_attention_heads", 1, 1 << 12}};
}

SizeFit with_value(const nlohmann::json& config, const SizingKey& key, int64_t steps) {
  SizeFit fit{.key = key.name, .value = steps * key.step, .config = config, .parameters = {}};
  fit.config[key.name] = fit.value;
  fit.config = models::complete_config(fit.config);
  fit.parameters = models::count_parameters(fit.config);
  return fit;
}

/// The size grows with the value, so the values just below and above the target are found by bisection.
SizeFit nearest_value(const nlohmann::json& config, const SizingKey& key, int64_t target) {
  int64_t below = 0, above = 1;
  SizeFit upper = with_value(config, key, above), lower = upper;
  while (upper.parameters.without_embedding < target && above < key.most_steps) {
    below = above;
    lower = upper;
    above *= 2;
    upper = with_value(config, key, above);
  }
  while (above - below > 1 && below > 0) {
    const int64_t middle = (below + above) / 2;
    SizeFit fit = with_value(config, key, middle);
    const bool small = fit.parameters.without_embedding < target;
    (small ? below : above) = middle;
    (small ? lower : upper) = std::move(fit);
  }
  const auto away = [&](const SizeFit& fit) { return std::abs(fit.parameters.without_embedding - target); };
  return away(lower) < away(upper) ? lower : upper;
}

}  // namespace

double size_difference(int64_t a, int64_t b) {
  return static_cast<double>(std::max(a, b)) / static_cast<double>(std::max<int64_t>(std::min(a, b), 1)) - 1;
}

SizeFit nearest_fit(const nlohmann::json& config, int64_t target) {
  const auto difference = [&](const SizeFit& fit) { return size_difference(fit.parameters.without_embedding, target); };
  std::vector<SizeFit> fits;
  for (const SizingKey& key : sizing_keys(config)) {
    fits.push_back(nearest_value(config, key, target));
    if (difference(fits.back()) <= kNear) break;
  }
  return *std::ranges::min_element(fits, {}, difference);
}

}  // namespace tamis::study
