#include "tamis/models/multiscreen_layer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "tamis/nn/rotary.h"
#include "tamis/ops/linear.h"

namespace tamis::models {

ops::ProjectionLayout projection_layout(const MultiscreenConfig& config) {
  return {config.num_attention_heads, config.key_dim, config.value_dim, config.gate};
}

at::Tensor positioned(const MultiscreenConfig& config, const at::Tensor& x_BTHK, int64_t first) {
  if (config.position != "rope") return x_BTHK;
  return nn::rotated(x_BTHK, first, {.theta = config.rope_theta, .factor = config.rope_factor});
}

at::Tensor apply_tiles(const MultiscreenConfig& config, const ops::ScreeningWeights& weights, const Screen& screen,
                       const at::Tensor& x_BTD) {
  const at::Tensor projected_BTW = ops::linear(x_BTD.to(weights.projection.scalar_type()), weights.projection);
  ops::ScreeningProjections p = ops::split_projections(projected_BTW, projection_layout(config));
  p.q_BTHK = positioned(config, p.q_BTHK, 0);
  p.k_BTHK = positioned(config, p.k_BTHK, 0);
  return x_BTD + ops::linear(screen(p).flatten(2), weights.output);
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
  result.position = config.position == "rope" ? "none" : config.position;  // the model rotates, not the operator
  if (options.expand_windows) result.expand_beyond = static_cast<double>(config.max_position_embeddings);
  return result;
}

}  // namespace tamis::models
