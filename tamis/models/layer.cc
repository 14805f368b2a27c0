#include "tamis/models/layer.h"

#include <ATen/ATen.h>

#include "tamis/nn/norm.h"
#include "tamis/nn/trace_scope.h"
#include "tamis/ops/linear.h"

namespace tamis::models {

using at::Tensor;

std::vector<Tensor> LayerWeights::list() const {
  std::vector<Tensor> result = mixer;
  for (const Tensor& tensor : {mixer_norm, mlp_norm, gate_up, down, position_scale}) {
    if (tensor.defined()) result.push_back(tensor);
  }
  return result;
}

LayerWeights LayerWeights::with(const std::vector<Tensor>& list) const {
  LayerWeights result = *this;
  auto next = list.begin();
  for (Tensor& tensor : result.mixer) tensor = *next++;
  for (Tensor* tensor : {&result.mixer_norm, &result.mlp_norm, &result.gate_up, &result.down, &result.position_scale}) {
    if (tensor->defined()) *tensor = *next++;
  }
  return result;
}

Layer::Layer(const ModelConfig& config, int64_t index, at::Device device)
    : index_(index),
      kind_(&find_mixer(config.mixer_of(index))),
      mixer_(kind_->make(config, device)),
      norm_eps_(config.norm_eps),
      gated_(config.mlp == "swiglu") {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  const int64_t D = config.hidden_size, F = config.intermediate_size;
  if (config.has_norms()) mixer_norm_ = at::empty({D}, options);
  if (!config.has_mlp()) return;
  if (config.has_norms()) mlp_norm_ = at::empty({D}, options);
  gate_up_ = at::empty({gated_ ? 2 * F : F, D}, options);
  down_ = at::empty({D, F}, options);
}

std::vector<LayerParameter> Layer::parameters() const {
  std::vector<LayerParameter> result;
  if (mixer_norm_.defined()) result.push_back({"mixer_norm.weight", mixer_norm_});
  for (LayerParameter& own : mixer_->parameters()) result.push_back(std::move(own));
  if (mlp_norm_.defined()) result.push_back({"mlp_norm.weight", mlp_norm_});
  if (!has_mlp()) return result;
  const int64_t F = down_.size(1);
  std::vector<CheckpointPart> parts = {{"up_proj.weight", F}};
  if (gated_) parts.insert(parts.begin(), {"gate_proj.weight", F});
  result.push_back({"gate_up", gate_up_, std::move(parts)});
  result.push_back({"down_proj.weight", down_});
  return result;
}

void Layer::initialise(Initialiser& initialiser) const {
  for (const Tensor& norm : {mixer_norm_, mlp_norm_}) {
    if (norm.defined()) norm.fill_(1);
  }
  mixer_->initialise(initialiser);
  if (!has_mlp()) return;
  initialiser.inner(gate_up_);
  initialiser.residual(down_);
}

LayerWeights Layer::weights(at::ScalarType dtype, const Tensor& position_scale) const {
  LayerWeights result{.dtype = dtype,
                      .mixer_norm = mixer_norm_,
                      .mlp_norm = mlp_norm_,
                      .gate_up = {},
                      .down = {},
                      .position_scale = position_scale,
                      .mixer = mixer_->weights(dtype)};
  if (has_mlp()) {
    result.gate_up = gate_up_.to(dtype);
    result.down = down_.to(dtype);
  }
  return result;
}

Tensor Layer::normalised(const Tensor& x, const Tensor& weight, at::ScalarType dtype) const {
  return (weight.defined() ? nn::rms_norm(x, weight, norm_eps_) : x).to(dtype);
}

MixerCall Layer::call(const LayerWeights& weights, const LayerSettings& settings) const {
  return {.weights = weights.mixer,
          .position_scale = weights.position_scale,
          .window = settings.window,
          .expand_beyond = settings.expand_beyond,
          .recompute = settings.recompute,
          .document = settings.document_BT.defined() ? std::optional(settings.document_BT) : std::nullopt,
          .observe = settings.observe,
          .context = settings.context};
}

Tensor Layer::mixer_input(const Tensor& x_BTD, const LayerWeights& weights) const {
  return normalised(x_BTD, weights.mixer_norm, weights.dtype);
}

Tensor Layer::sum(const Tensor& x_BTD, const Tensor& term_BTD, std::optional<nn::Dropout> dropout, Part part) const {
  if (!dropout) return x_BTD + term_BTD;
  dropout->place = 1 + 2 * index_ + static_cast<int64_t>(part);  // 0: the embedding
  return x_BTD + nn::dropout(term_BTD, *dropout);
}

Tensor Layer::mlp(const Tensor& y_BTD, const LayerWeights& weights) const {
  const nn::TraceScope scope("MLP");
  const Tensor inner = ops::linear(normalised(y_BTD, weights.mlp_norm, weights.dtype), weights.gate_up);
  if (!gated_) return ops::linear(at::gelu(inner), weights.down);
  const auto gate_up = inner.chunk(2, -1);
  return ops::linear(at::silu(gate_up[0]) * gate_up[1], weights.down);
}

Tensor Layer::add_mlp(const Tensor& y_BTD, const LayerWeights& weights,
                      const std::optional<nn::Dropout>& dropout) const {
  return has_mlp() ? sum(y_BTD, mlp(y_BTD, weights), dropout, Part::kMlp) : y_BTD;
}

Tensor Layer::forward(const Tensor& x_BTD, const LayerWeights& weights, const LayerSettings& settings) const {
  const auto mixed = [&] {
    const nn::TraceScope scope(kind_->name);
    return mixer_->forward(mixer_input(x_BTD, weights), call(weights, settings));
  };
  return add_mlp(sum(x_BTD, mixed(), settings.dropout, Part::kMixer), weights, settings.dropout);
}

}  // namespace tamis::models
