#include "tamis/models/multiscreen.h"

#include <ATen/ATen.h>

#include <cmath>

#include "tamis/models/token_ids.h"
#include "tamis/nn/initialise.h"
#include "tamis/nn/recompute.h"
#include "tamis/nn/rows.h"

namespace tamis::models {

nlohmann::json complete_multiscreen(const nlohmann::json& config) {
  return to_json(read_multiscreen_config(config));
}

std::unique_ptr<Model> make_multiscreen(const nlohmann::json& complete_config, const Start& start) {
  return std::make_unique<Multiscreen>(read_multiscreen_config(complete_config), start);
}

Multiscreen::Multiscreen(const MultiscreenConfig& config, const Start& start)
    : config_(config), json_(to_json(config)) {
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions().dtype(at::kFloat).device(start.device);
  const int64_t heads = config.num_attention_heads;
  embed_ = at::empty({config.vocab_size, config.hidden_size}, options);
  s_E_ = at::empty({}, options);
  s_F_ = at::empty({}, options);
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    layers_.push_back({.projection = at::empty({config.projected_width(), config.hidden_size}, options),
                       .output = at::empty({config.hidden_size, config.value_width()}, options),
                       .s_w = at::empty({heads}, options),
                       .s_r = at::empty({heads}, options),
                       .s_O = at::empty({heads}, options)});
    if (config.fixed_r) layers_.back().s_r.fill_(std::log(*config.fixed_r) - std::log1p(-*config.fixed_r));
  }
  if (start.seed) initialise(*start.seed);
  for (const Parameter& parameter : parameters()) parameter.tensor.requires_grad_(true);
}

/// Appendix D: deviations by the width of each projection's output.
void Multiscreen::initialise(uint64_t seed) {
  const double hidden = static_cast<double>(config_.hidden_size);
  const double key = 0.1 / std::sqrt(static_cast<double>(config_.key_dim));
  const double value = 0.1 / std::sqrt(static_cast<double>(config_.value_dim));
  const double gate = 0.1;
  uint64_t stream = 0;
  nn::fill_normal(embed_, 0.1 / std::sqrt(hidden), seed, stream++);
  s_E_.fill_(0);
  s_F_.fill_(std::log(hidden) / 2);  // ln sqrt(D)
  for (const Layer& layer : layers_) {
    int64_t row = 0;
    const auto fill_rows = [&](int64_t rows, double deviation) {
      nn::fill_normal(layer.projection.narrow(0, row, rows), deviation, seed, stream++);
      row += rows;
    };
    fill_rows(config_.key_width(), key);
    fill_rows(config_.key_width(), key);
    fill_rows(config_.value_width(), value);
    if (config_.gate) fill_rows(config_.value_width(), gate);
    nn::fill_normal(layer.output, 0.1 / std::sqrt(hidden), seed, stream++);
    layer.s_w.copy_(at::linspace(0, std::log(config_.mipe_threshold), config_.num_attention_heads));
    if (!config_.fixed_r) layer.s_r.fill_(0);
    layer.s_O.fill_(-std::log(static_cast<double>(config_.num_hidden_layers * config_.num_attention_heads)) / 2);
  }
}

std::vector<Parameter> Multiscreen::parameters() const {
  std::vector<Parameter> result = {{"embed.weight", embed_}, {"s_E", s_E_}, {"s_F", s_F_}};
  for (size_t l = 0; l < layers_.size(); ++l) {
    const std::string prefix = "layers." + std::to_string(l) + ".";
    const Layer& layer = layers_[l];
    result.push_back({prefix + "qkvg", layer.projection});
    result.push_back({prefix + "o_proj.weight", layer.output});
    result.push_back({prefix + "s_w", layer.s_w});
    if (!config_.fixed_r) result.push_back({prefix + "s_r", layer.s_r});
    result.push_back({prefix + "s_O", layer.s_O});
  }
  return result;
}

std::vector<nn::NamedTensor> Multiscreen::checkpoint_tensors(std::span<const at::Tensor> like_parameters) const {
  const std::vector<Parameter> own = parameters();
  TORCH_INTERNAL_ASSERT(like_parameters.size() == own.size());
  std::vector<nn::NamedTensor> result;
  for (size_t p = 0; p < own.size(); ++p) {
    const std::string& name = own[p].name;
    if (!name.ends_with(".qkvg")) {
      result.push_back({name, like_parameters[p]});
      continue;
    }
    const std::string prefix = name.substr(0, name.size() - std::string("qkvg").size());
    int64_t row = 0;
    const auto take_rows = [&](const char* projection, int64_t rows) {
      result.push_back({prefix + projection + "_proj.weight", like_parameters[p].narrow(0, row, rows)});
      row += rows;
    };
    take_rows("q", config_.key_width());
    take_rows("k", config_.key_width());
    take_rows("v", config_.value_width());
    if (config_.gate) take_rows("g", config_.value_width());
  }
  return result;
}

ops::ScreeningWeights Multiscreen::tile_weights(const Layer& layer, at::ScalarType dtype) const {
  // exp(s_O) costs D H V products in the weights; in the activations it would cost B T H V and another pass.
  const at::Tensor by_head = layer.output.unflatten(1, {config_.num_attention_heads, config_.value_dim});
  const at::Tensor output = (by_head * layer.s_O.exp().unsqueeze(-1)).flatten(1);
  return {layer.projection.to(dtype), output.to(dtype), layer.s_w, layer.s_r};
}

at::Tensor Multiscreen::embedded(const at::Tensor& tokens_BT) const {
  check_token_ids(tokens_BT, config_.vocab_size);
  return nn::exp_scaled(nn::unit_rows(at::embedding(embed_, tokens_BT)), s_E_);
}

at::Tensor Multiscreen::hidden(const at::Tensor& tokens_BT, const ForwardOptions& options) const {
  at::Tensor x_BTD = embedded(tokens_BT);
  const bool may_recompute = !options.observe && at::GradMode::is_enabled();
  const auto recomputed = static_cast<size_t>(std::lround(options.recompute * static_cast<double>(layers_.size())));
  if (options.observe) options.observe("embedding", x_BTD);
  for (size_t l = 0; l < layers_.size(); ++l) {
    const ops::ScreeningWeights weights = tile_weights(layers_[l], options.compute_dtype);
    if (options.observe) {
      x_BTD = observed_layer("layers." + std::to_string(l), weights, x_BTD, options);
    } else {
      const bool again = may_recompute && l < recomputed;
      x_BTD = next_layer(weights, x_BTD, options, again ? ops::Keep::kInput : ops::Keep::kInputAndProjections);
    }
  }
  x_BTD = nn::exp_scaled(x_BTD, s_F_);
  if (options.observe) options.observe("final", x_BTD);
  return x_BTD;
}

at::Tensor Multiscreen::next_layer(const ops::ScreeningWeights& weights, const at::Tensor& x_BTD,
                                   const ForwardOptions& options, ops::Keep keep) const {
  const ops::ScreeningOptions screening = screening_options(config_, options);
  if (config_.position != "rope") {
    return x_BTD +
           ops::screening_layer(x_BTD.to(options.compute_dtype), weights, projection_layout(config_), screening, keep);
  }
  // Captures by value: recomputation runs after this function has returned.
  const auto rotated = [config = config_, screening](const std::vector<at::Tensor>& in) {
    const ops::ScreeningWeights own = {in[1], in[2], in[3], in[4]};
    const auto screen = [&](const ops::ScreeningProjections& p) {
      return ops::screening(p, own.s_w, own.s_r, screening);
    };
    return apply_tiles(config, own, screen, in[0]);
  };
  const std::vector<at::Tensor> inputs = {x_BTD, weights.projection, weights.output, weights.s_w, weights.s_r};
  return keep == ops::Keep::kInput ? nn::recompute(rotated, inputs) : rotated(inputs);
}

at::Tensor Multiscreen::observed_layer(const std::string& name, const ops::ScreeningWeights& weights,
                                       const at::Tensor& x_BTD, const ForwardOptions& options) const {
  const auto observe = [&](const std::string& part, const at::Tensor& x) { options.observe(name + "." + part, x); };
  const auto screen = [&](const ops::ScreeningProjections& p) {
    const at::Tensor u_BTHV = ops::screening(p, weights.s_w, weights.s_r, screening_options(config_, options));
    observe("q", p.q_BTHK);
    observe("k", p.k_BTHK);
    observe("v", p.v_BTHV);
    if (p.gate_BTHV) observe("gate", *p.gate_BTHV);
    observe("screening", u_BTHV);
    return u_BTHV;
  };
  const at::Tensor next_BTD = apply_tiles(config_, weights, screen, x_BTD);
  options.observe(name, next_BTD);
  return next_BTD;
}

at::Tensor Multiscreen::head_weight() const {
  return nn::unit_rows(embed_);
}

Flops Multiscreen::flops_per_token(int64_t length, bool expand_windows) const {
  Flops flops;
  // Tied: the embedding costs nothing on the way in and N x D products as the head.
  for (const Parameter& parameter : parameters()) flops.weights += 2.0 * static_cast<double>(parameter.tensor.numel());
  for (const Tile& tile : tiles()) {
    const bool endless = expand_windows && tile.window > static_cast<double>(training_length());
    const double keys = mean_visible_keys(endless ? INFINITY : tile.window, length);
    flops.similarities += 2.0 * keys * static_cast<double>(config_.key_dim);
    flops.values += 2.0 * keys * static_cast<double>(config_.value_dim);
  }
  return flops;
}

}  // namespace tamis::models
