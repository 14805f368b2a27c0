#include "tamis/models/multiscreen_layer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace tamis::models {

TileProjections project(const MultiscreenConfig& config, const TileWeights& weights, const at::Tensor& x_BTD) {
  const int64_t heads = config.num_attention_heads;
  std::vector<int64_t> widths = {config.key_width(), config.key_width(), config.value_width()};
  if (config.gate) widths.push_back(config.value_width());
  const at::Tensor projected = at::linear(x_BTD.to(weights.projection.scalar_type()), weights.projection);
  // One split rather than four slices: its backward pass is one concatenation, not four padded sums.
  const auto parts = projected.split_with_sizes(widths, -1);
  const auto by_head = [&](const at::Tensor& part) { return part.unflatten(-1, {heads, -1}); };
  TileProjections result = {by_head(parts[0]), by_head(parts[1]), by_head(parts[2]), std::nullopt};
  if (config.gate) result.gate_BTHV = by_head(parts[3]);
  return result;
}

at::Tensor apply_tiles(const MultiscreenConfig& config, const TileWeights& weights, const Screen& screen,
                       const at::Tensor& x_BTD) {
  const at::Tensor u_BTHV = screen(project(config, weights, x_BTD));
  return x_BTD + at::linear(u_BTHV.flatten(2), weights.output);
}

double mean_visible_keys(double width, int64_t length) {
  // Query t sees min(t + 1, ceil(w)) keys.
  const auto T = static_cast<double>(length);
  const double span = std::min(std::ceil(width), T);
  return (span * (span + 1) / 2 + (T - span) * span) / T;
}

ops::ScreeningOptions screening_options(const MultiscreenConfig& config, const ForwardOptions& options) {
  ops::ScreeningOptions result;
  result.mipe_threshold = config.mipe_threshold;
  result.tanh_norm = config.tanh_norm;
  result.position = config.position;
  if (options.expand_windows) result.expand_beyond = static_cast<double>(config.max_position_embeddings);
  return result;
}

}  // namespace tamis::models
