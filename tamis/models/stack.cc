#include "tamis/models/stack.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "tamis/base/error.h"
#include "tamis/models/stack_state.h"
#include "tamis/models/token_ids.h"
#include "tamis/nn/initialise.h"
#include "tamis/nn/norm.h"
#include "tamis/nn/recompute.h"
#include "tamis/ops/linear.h"

namespace tamis::models {

using at::Tensor;

namespace {

constexpr size_t kBeforeOwn = 4;  // of layer_weights, before those of the mixer

}  // namespace

nlohmann::json complete_stack(const nlohmann::json& config) {
  return to_json(read_stack_config(config));
}

std::unique_ptr<Model> make_stack(const nlohmann::json& complete_config, const Start& start) {
  return std::make_unique<Stack>(read_stack_config(complete_config), start);
}

void Initialiser::inner(const Tensor& matrix) {
  normal(matrix, std::sqrt(2 / (5 * static_cast<double>(config_.hidden_size))));
}

void Initialiser::residual(const Tensor& matrix) {
  const auto layers = static_cast<double>(config_.num_hidden_layers);
  normal(matrix, 2 / (layers * std::sqrt(static_cast<double>(config_.hidden_size))));
}

void Initialiser::normal(const Tensor& matrix, double deviation) {
  nn::fill_normal(matrix, deviation, seed_, stream_++);
}

Stack::Stack(const StackConfig& config, const Start& start) : config_(config), json_(to_json(config)) {
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions().dtype(at::kFloat).device(start.device);
  const int64_t N = config.vocab_size, D = config.hidden_size, F = config.intermediate_size;
  embed_ = at::empty({N, D}, options);
  if (!config.tie_word_embeddings) head_ = at::empty({N, D}, options);
  if (config.final_norm_weight) norm_ = at::empty({D}, options);
  if (config.ssmax == "position") position_scale_ = at::empty({config.max_position_embeddings}, options);
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    layers_.push_back({.mixer = find_mixer(config.mixer_of(l)).make(config_, start.device),
                       .mixer_norm = at::empty({D}, options),
                       .mlp_norm = at::empty({D}, options),
                       .gate_up = at::empty({config.mlp == "gelu" ? F : 2 * F, D}, options),
                       .down = at::empty({D, F}, options)});
  }
  if (start.seed) initialise(*start.seed);
  for (const Parameter& parameter : parameters()) parameter.tensor.requires_grad_(true);
}

void Stack::initialise(uint64_t seed) {
  Initialiser initialiser(seed, config_);
  initialiser.inner(embed_);
  if (head_.defined()) initialiser.inner(head_);
  if (norm_.defined()) norm_.fill_(1);
  if (position_scale_.defined()) position_scale_.fill_(1);
  for (const Layer& layer : layers_) {
    layer.mixer_norm.fill_(1);
    layer.mlp_norm.fill_(1);
    layer.mixer->initialise(initialiser);
    initialiser.inner(layer.gate_up);
    initialiser.residual(layer.down);
  }
}

std::vector<Parameter> Stack::parameters() const {
  std::vector<Parameter> result = {{"embed.weight", embed_}};
  for (size_t l = 0; l < layers_.size(); ++l) {
    const std::string prefix = "layers." + std::to_string(l) + ".";
    const Layer& layer = layers_[l];
    result.push_back({prefix + "mixer_norm.weight", layer.mixer_norm});
    for (const Parameter& own : layer.mixer->parameters()) result.push_back({prefix + own.name, own.tensor});
    result.push_back({prefix + "mlp_norm.weight", layer.mlp_norm});
    result.push_back({prefix + "gate_up", layer.gate_up});
    result.push_back({prefix + "down_proj.weight", layer.down});
  }
  if (position_scale_.defined()) result.push_back({"position_scale", position_scale_});
  if (norm_.defined()) result.push_back({"norm.weight", norm_});
  if (head_.defined()) result.push_back({"head.weight", head_});
  return result;
}

std::vector<nn::NamedTensor> Stack::checkpoint_tensors(std::span<const Tensor> like_parameters) const {
  const std::vector<Parameter> own = parameters();
  TORCH_INTERNAL_ASSERT(like_parameters.size() == own.size());
  std::vector<nn::NamedTensor> result;
  for (size_t p = 0; p < own.size(); ++p) {
    const std::string& name = own[p].name;
    if (!name.ends_with(".gate_up")) {
      result.push_back({name, like_parameters[p]});
      continue;
    }
    const std::string prefix = name.substr(0, name.size() - std::string("gate_up").size());
    const int64_t F = config_.intermediate_size;
    const bool gated = config_.mlp != "gelu";
    if (gated) result.push_back({prefix + "gate_proj.weight", like_parameters[p].narrow(0, 0, F)});
    result.push_back({prefix + "up_proj.weight", like_parameters[p].narrow(0, gated ? F : 0, F)});
  }
  return result;
}

std::vector<Tensor> Stack::layer_weights(const Layer& layer, at::ScalarType dtype) const {
  std::vector<Tensor> weights = {layer.mixer_norm, layer.mlp_norm, layer.gate_up.to(dtype), layer.down.to(dtype)};
  for (const Parameter& own : layer.mixer->parameters()) {
    weights.push_back(own.tensor.dim() > 1 ? own.tensor.to(dtype) : own.tensor);
  }
  if (position_scale_.defined()) weights.push_back(position_scale_);
  return weights;
}

/// A layer on given weights: what a forward pass, its recomputation, decoding and looking inside have in common.
class Stack::LayerCall {
 public:
  LayerCall(const Stack& stack, size_t layer, std::span<const Tensor> weights,
            std::optional<int64_t> window = std::nullopt)
      : mixer_(*stack.layers_[layer].mixer),
        eps_(stack.config_.norm_eps),
        gated_(stack.config_.mlp != "gelu"),
        weights_(weights) {
    const size_t shared = stack.position_scale_.defined() ? 1 : 0;
    own_.window = window;
    own_.own.assign(weights.begin() + kBeforeOwn, weights.end() - static_cast<ptrdiff_t>(shared));
    if (shared > 0) own_.position_scale = weights.back();
  }

  const Mixer& mixer() const { return mixer_; }
  const MixerCall& own() const { return own_; }

  /// norm(x) in the compute dtype, as the mixer wants it.
  Tensor mixer_input(const Tensor& x) const { return nn::rms_norm(x, weights_[0], eps_).to(dtype()); }

  /// x + mixed, then the MLP.
  Tensor finish(const Tensor& x, const Tensor& mixed) const {
    const Tensor y = x + mixed;
    const Tensor inner = ops::linear(nn::rms_norm(y, weights_[1], eps_).to(dtype()), weights_[2]);
    if (!gated_) return y + ops::linear(at::gelu(inner), weights_[3]);
    const auto gate_up = inner.chunk(2, -1);
    return y + ops::linear(at::silu(gate_up[0]) * gate_up[1], weights_[3]);
  }

  Tensor operator()(const Tensor& x) const { return finish(x, mixer_.forward(mixer_input(x), own_)); }

 private:
  at::ScalarType dtype() const { return weights_[2].scalar_type(); }

  const Mixer& mixer_;
  double eps_;
  bool gated_;
  std::span<const Tensor> weights_;
  MixerCall own_;
};

Tensor Stack::embedded(const Tensor& tokens_BT) const {
  check_token_ids(tokens_BT, config_.vocab_size);
  return at::embedding(embed_, tokens_BT);
}

Tensor Stack::final_norm(const Tensor& x_BTD) const {
  return nn::rms_norm(x_BTD, norm_.defined() ? std::optional(norm_) : std::nullopt, config_.norm_eps);
}

Tensor Stack::head_weight() const {
  return head_.defined() ? head_ : embed_;
}

/// Screening layers of a stack keep their windows: what they are at test time is compared with other mixers.
void Stack::check_options(const ForwardOptions& options) const {
  if (!options.expand_windows) return;
  fail(ExitCode::kUsage, "--expand-windows: is for a multiscreen; the windows of a {} stay as they are",
       config_.model_type);
}

Tensor Stack::hidden(const Tensor& tokens_BT, const ForwardOptions& options) const {
  check_options(options);
  Tensor x = embedded(tokens_BT);
  if (options.observe) options.observe("embedding", x);
  const bool may_recompute = !options.observe && at::GradMode::is_enabled();
  const auto recomputed = static_cast<size_t>(std::lround(options.recompute * static_cast<double>(layers_.size())));
  for (size_t l = 0; l < layers_.size(); ++l) {
    std::vector<Tensor> inputs = layer_weights(layers_[l], options.compute_dtype);
    if (may_recompute && l < recomputed) {
      inputs.insert(inputs.begin(), x);
      x = nn::recompute(
          [this, l, window = options.window](const std::vector<Tensor>& in) {
            return LayerCall(*this, l, std::span(in).subspan(1), window)(in[0]);
          },
          inputs);
    } else {
      x = LayerCall(*this, l, inputs, options.window)(x);
    }
    if (options.observe) options.observe("layers." + std::to_string(l), x);
  }
  x = final_norm(x);
  if (options.observe) options.observe("final", x);
  return x;
}

DecodingLayer Stack::decoding_layer(const Layer& layer, const ForwardOptions& options) const {
  // int8 is rounded to once, from the weights themselves.
  const std::vector<Tensor> weights = layer_weights(layer, options.int8_weights ? at::kFloat : options.compute_dtype);
  DecodingLayer result{.mixer = layer.mixer.get(), .mixer_norm = weights[0], .mlp_norm = weights[1]};
  const auto streamed = [&](const Tensor& matrix) { return nn::StreamedMatrix(matrix, options.int8_weights); };
  result.mlp = {streamed(weights[2]), streamed(weights[3])};
  bool known = result.mlp[0].rows() && result.mlp[1].rows();
  for (size_t own = 0; own < layer.mixer->parameters().size(); ++own) {
    const Tensor& tensor = weights[kBeforeOwn + own];
    const bool matrix = tensor.dim() > 1;
    result.own.push_back(matrix ? std::optional(streamed(tensor)) : std::nullopt);
    result.call.own.push_back(matrix ? Tensor() : tensor);
    known = known && (!matrix || result.own.back()->rows());
  }
  if (known) result.form = layer.mixer->token_form();
  return result;
}

StackWeights Stack::decoding_weights(const ForwardOptions& options) const {
  StackWeights all{.owner = this, .compute_dtype = options.compute_dtype, .position_scale = {}, .layers = {}};
  if (position_scale_.defined()) all.position_scale = position_scale_;
  for (const Layer& layer : layers_) all.layers.push_back(decoding_layer(layer, options));
  return all;
}

/// What layer_weights gave, in the compute dtype again: of int8 the rounded matrices.
static std::vector<Tensor> dense_weights(const StackWeights& weights, const DecodingLayer& layer) {
  const auto dense = [&](const nn::StreamedMatrix& matrix) { return matrix.dense(weights.compute_dtype); };
  std::vector<Tensor> result = {layer.mixer_norm, layer.mlp_norm, dense(layer.mlp[0]), dense(layer.mlp[1])};
  for (size_t own = 0; own < layer.own.size(); ++own) {
    result.push_back(layer.own[own] ? dense(*layer.own[own]) : layer.call.own[own]);
  }
  if (weights.position_scale) result.push_back(*weights.position_scale);
  return result;
}

std::unique_ptr<DecodingState> Stack::new_state(const ForwardOptions& options) const {
  check_options(options);
  const at::NoGradGuard no_grad;
  std::vector<std::unique_ptr<MixerState>> states;
  for (const Layer& layer : layers_) states.push_back(layer.mixer->new_state());
  return std::make_unique<StackState>(
      json_.dump(), decoding_.get(parameters(), options, [&] { return decoding_weights(options); }), std::move(states));
}

Tensor Stack::decode(const Tensor& tokens_BC, std::span<DecodingState* const> states) const {
  const at::NoGradGuard no_grad;
  const std::vector<StackState*> sequences = sequences_of<StackState>(*this, tokens_BC, states);
  const StackWeights& weights = *sequences.front()->weights();
  Tensor x = embedded(tokens_BC);
  if (tokens_BC.size(1) == 1 && weights.token_by_token()) {
    decode_token(config_, weights.layers, sequences, x.data_ptr<float>());
    return final_norm(x);
  }
  for (StackState* sequence : sequences) sequence->begin(tokens_BC.size(1));
  std::vector<MixerState*> own(sequences.size());
  for (size_t l = 0; l < layers_.size(); ++l) {
    for (size_t b = 0; b < sequences.size(); ++b) own[b] = &sequences[b]->layer(l);
    const std::vector<Tensor> dense = dense_weights(weights, weights.layers[l]);
    const LayerCall call(*this, l, dense);
    x = call.finish(x, call.mixer().decode(call.mixer_input(x), call.own(), own));
  }
  for (StackState* sequence : sequences) sequence->advance(tokens_BC.size(1));
  return final_norm(x);
}

Flops Stack::flops_per_token(int64_t length, bool /*expand_windows*/) const {
  Flops flops;
  for (const Parameter& parameter : parameters()) {
    const bool looked_up = parameter.tensor.is_same(embed_) && head_.defined();  // the head is another matrix
    if (parameter.tensor.dim() > 1 && !looked_up) flops.weights += 2.0 * static_cast<double>(parameter.tensor.numel());
  }
  for (const Layer& layer : layers_) {
    const MixerFlops own = layer.mixer->flops(length);
    flops.similarities += own.similarities;
    flops.values += own.values;
  }
  return flops;
}

int64_t Stack::relevance_maps() const {
  int64_t maps = 0;
  for (const Layer& layer : layers_) maps += static_cast<int64_t>(layer.mixer->windows().size());
  return maps;
}

std::vector<RelevanceMap> Stack::relevance(const Tensor& tokens_1T, const ForwardOptions& options) const {
  check_options(options);
  const at::NoGradGuard no_grad;
  std::vector<RelevanceMap> maps;
  Tensor x = embedded(tokens_1T);
  for (size_t l = 0; l < layers_.size(); ++l) {
    const std::vector<Tensor> weights = layer_weights(layers_[l], options.compute_dtype);
    const LayerCall call(*this, l, weights);
    RelevanceMap map;
    map.layer = static_cast<int64_t>(l);
    map.relevance = relevance_map(call.mixer().value_path(call.mixer_input(x), call.own()));
    map.window = call.mixer().windows();
    maps.push_back(std::move(map));
    x = call(x);
  }
  return maps;
}

Tensor Stack::attention_mass(const Tensor& tokens_1T, int64_t first, int64_t last,
                             const ForwardOptions& options) const {
  check_options(options);
  const at::NoGradGuard no_grad;
  std::vector<Tensor> masses;
  Tensor x = embedded(tokens_1T);
  for (size_t l = 0; l < layers_.size(); ++l) {
    const std::vector<Tensor> weights = layer_weights(layers_[l], options.compute_dtype);
    const LayerCall call(*this, l, weights);
    masses.push_back(models::attention_mass(call.mixer().value_path(call.mixer_input(x), call.own()), first, last));
    x = call(x);
  }
  return at::stack(masses).cpu();
}

}  // namespace tamis::models
