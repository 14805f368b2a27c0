// Decoding with a PatternModel: the layers of `hidden`, with the past in states instead of in the input.

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "tamis/base/error.h"
#include "tamis/models/pattern_model.h"
#include "tamis/models/token_pass.h"
#include "tamis/nn/rows.h"
#include "tamis/ops/linear.h"

namespace tamis::models {
namespace {

using at::Tensor;

/// The states of one call: of this model, each once, one per row of tokens. Throws ExitCode::kRuntime.
std::vector<SequenceState*> sequences_of(const Model& model, const Tensor& tokens_BC,
                                         std::span<DecodingState* const> states) {
  std::vector<SequenceState*> sequences;
  for (DecodingState* state : states) {
    auto* const own = dynamic_cast<SequenceState*>(state);
    if (own == nullptr || (!sequences.empty() && own->weights() != sequences.front()->weights())) {
      fail(ExitCode::kRuntime,
           "decode: the states of one call must come from one model, format of weights and training step");
    }
    if (own->weights()->owner != &model) {
      fail(ExitCode::kRuntime, "decode: state {} belongs to another model than the one that decodes", sequences.size());
    }
    if (std::find(sequences.begin(), sequences.end(), own) != sequences.end()) {
      fail(ExitCode::kRuntime, "decode: a state may occur only once in a call, but state {} came before",
           sequences.size());
    }
    sequences.push_back(own);
  }
  if (sequences.empty() || tokens_BC.dim() != 2 || tokens_BC.size(0) != static_cast<int64_t>(sequences.size())) {
    fail(ExitCode::kRuntime, "decode: tokens must have one row per state, but have shape {} for {} states",
         c10::str(tokens_BC.sizes()), sequences.size());
  }
  return sequences;
}

}  // namespace

DecodingLayer PatternModel::decoding_layer(const Layer& layer, const ForwardOptions& options) const {
  // int8 is rounded to once, from the weights themselves.
  const at::ScalarType dtype = options.int8_weights ? at::kFloat : options.compute_dtype;
  LayerWeights weights = layer.weights(dtype, position_scale_);
  const HeadMatrices matrices = layer.mixer().head_matrices(weights.mixer);
  const auto streamed = [&](const Tensor& matrix) { return nn::StreamedMatrix(matrix, options.int8_weights); };
  std::optional<DecodingLayer::Mlp> mlp;
  if (layer.has_mlp()) mlp = {streamed(weights.gate_up), streamed(weights.down)};

  weights.dtype = options.compute_dtype;
  weights.gate_up = weights.down = Tensor();
  for (Tensor& own : weights.mixer) {
    if (own.dim() > 1) own = Tensor();
  }
  DecodingLayer result{.layer = &layer,
                       .heads = matrices.count,
                       .head_rows = streamed(matrices.heads),
                       .output = streamed(matrices.output),
                       .mlp = std::move(mlp),
                       .vectors = std::move(weights),
                       .step = {}};
  const bool readable = result.head_rows.rows() && result.output.rows() &&
                        (!result.mlp || (result.mlp->gate_up.rows() && result.mlp->down.rows()));
  if (readable) result.step = layer.mixer().head_step(layer.call(result.vectors, {}));
  return result;
}

DecodingWeights PatternModel::decoding_weights(const ForwardOptions& options) const {
  DecodingWeights all{.owner = this, .hidden_size = config_.hidden_size, .norm_eps = config_.norm_eps, .layers = {}};
  for (const Layer& layer : layers_) all.layers.push_back(decoding_layer(layer, options));
  return all;
}

std::unique_ptr<DecodingState> PatternModel::new_state(const ForwardOptions& options) const {
  const at::NoGradGuard no_grad;
  return std::make_unique<SequenceState>(
      json_, settings(options).expand_beyond,
      decoding_.get(parameters(), options, [&] { return decoding_weights(options); }));
}

Tensor PatternModel::decode(const Tensor& tokens_BC, std::span<DecodingState* const> states) const {
  const at::NoGradGuard no_grad;
  const std::vector<SequenceState*> sequences = sequences_of(*this, tokens_BC, states);
  if (tokens_BC.size(1) != 1 || !sequences.front()->weights()->token_by_token()) {
    return decode_chunk(tokens_BC, sequences);
  }
  const Tensor x_B1D = embedded_token(tokens_BC);
  decode_token(sequences, x_B1D.data_ptr<float>());
  return finished_token(x_B1D);
}

Tensor PatternModel::decode_chunk(const Tensor& tokens_BC, std::span<SequenceState* const> states) const {
  // Ids on another device are the model's own results. To check them would mean to wait for them.
  Tensor x = tokens_BC.is_cpu() ? embedded(tokens_BC) : looked_up(tokens_BC);
  for (SequenceState* state : states) state->begin(tokens_BC.size(1));
  std::vector<MixerState*> own(states.size());
  const std::vector<DecodingLayer>& layers = states.front()->weights()->layers;
  for (size_t l = 0; l < layers.size(); ++l) {
    for (size_t b = 0; b < states.size(); ++b) own[b] = &states[b]->layer(l);
    const DecodingLayer& kept = layers[l];
    const LayerWeights weights = kept.dense();
    const Tensor input = kept.layer->mixer_input(x, weights);
    const Tensor projected = ops::linear(input, kept.head_rows.dense(weights.dtype)).unflatten(-1, {kept.heads, -1});
    const Tensor mixed = kept.layer->mixer().decode(projected, kept.layer->call(weights, {}), own);
    x = kept.layer->add_mlp(x + ops::linear(mixed.flatten(2), kept.output.dense(weights.dtype)), weights);
  }
  for (SequenceState* state : states) state->advance(tokens_BC.size(1));
  return finished(x);
}

Tensor PatternModel::embedded_token(const Tensor& tokens_B1) const {
  if (!config_.has_unit_embedding() || !tokens_B1.is_cpu() || tokens_B1.scalar_type() != at::kLong) {
    return embedded(tokens_B1);
  }
  const int64_t B = tokens_B1.size(0), D = config_.hidden_size;
  const Tensor x_B1D = at::empty({B, 1, D}, at::kFloat);
  const double scale = std::exp(static_cast<double>(s_E_.item<float>()));
  for (int64_t b = 0; b < B; ++b) {
    const int64_t token = tokens_B1.const_data_ptr<int64_t>()[b * tokens_B1.stride(0)];
    if (token < 0 || token >= config_.vocab_size) return embedded(tokens_B1);  // throws: the id is out of range
    nn::unit_row(embed_.const_data_ptr<float>() + token * D, D, scale, x_B1D.data_ptr<float>() + b * D);
  }
  return x_B1D;
}

Tensor PatternModel::finished_token(const Tensor& x_B1D) const {
  if (config_.has_norms() || !x_B1D.is_cpu()) return finished(x_B1D);
  if (!config_.has_unit_embedding()) return x_B1D;
  float* const x = x_B1D.data_ptr<float>();
  nn::exp_scaled_row(x, x_B1D.numel(), s_F_.item<float>(), x);
  return x_B1D;
}

}  // namespace tamis::models
