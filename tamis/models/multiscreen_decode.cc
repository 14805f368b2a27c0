// Decoding with a Multiscreen: the layers of `hidden`, with the past in a state instead of in the input.

#include <ATen/ATen.h>

#include <cmath>

#include "tamis/models/multiscreen.h"
#include "tamis/models/multiscreen_token.h"
#include "tamis/nn/rows.h"
#include "tamis/ops/linear.h"

namespace tamis::models {
namespace {

/// A chunk's projections from weights that stand head by head.
ops::ScreeningProjections project_heads(const MultiscreenConfig& config, const at::Tensor& projection,
                                        const at::Tensor& x_BCD) {
  std::vector<int64_t> widths = {config.key_dim, config.key_dim, config.value_dim};
  if (config.gate) widths.push_back(config.value_dim);
  const at::Tensor projected = ops::linear(x_BCD.to(projection.scalar_type()), projection);
  const auto parts = projected.unflatten(-1, {config.num_attention_heads, -1}).split_with_sizes(widths, -1);
  ops::ScreeningProjections result = {parts[0], parts[1], parts[2], std::nullopt};
  if (config.gate) result.gate_BTHV = parts[3];
  return result;
}

/// Row b stands after what states[b] has seen.
at::Tensor positioned_rows(const MultiscreenConfig& config, const at::Tensor& x_BCHK,
                           std::span<MultiscreenState* const> states) {
  if (config.position != "rope") return x_BCHK;
  std::vector<at::Tensor> rows;
  for (size_t b = 0; b < states.size(); ++b) {
    rows.push_back(positioned(config, x_BCHK.narrow(0, static_cast<int64_t>(b), 1), states[b]->position()));
  }
  return at::cat(rows);
}

at::Tensor screen(std::span<ops::ScreeningState* const> states, const ops::ScreeningProjections& p) {
  // The stores live on the CPU, wherever the matrices are.
  const auto gate = p.gate_BTHV ? std::optional(p.gate_BTHV->cpu()) : std::nullopt;
  return ops::ScreeningState::step(states, p.q_BTHK.cpu(), p.k_BTHK.cpu(), p.v_BTHV.cpu(), gate).to(p.v_BTHV.device());
}

}  // namespace

DecodingTile Multiscreen::decoding_tile(const Layer& layer, const ForwardOptions& options) const {
  // int8 is rounded to once, from the weights themselves.
  const ops::ScreeningWeights tile = tile_weights(layer, options.int8_weights ? at::kFloat : options.compute_dtype);
  const int64_t heads = config_.num_attention_heads;
  std::vector<int64_t> widths = {config_.key_width(), config_.key_width(), config_.value_width()};
  if (config_.gate) widths.push_back(config_.value_width());
  std::vector<at::Tensor> by_head;
  for (const at::Tensor& rows : tile.projection.split_with_sizes(widths)) {
    by_head.push_back(rows.unflatten(0, {heads, -1}));
  }
  return {nn::StreamedMatrix(at::cat(by_head, 1).flatten(0, 1), options.int8_weights),
          nn::StreamedMatrix(tile.output, options.int8_weights), tile.s_w.cpu(), tile.s_r.cpu()};
}

std::unique_ptr<DecodingState> Multiscreen::new_state(const ForwardOptions& options) const {
  const at::NoGradGuard no_grad;
  return std::make_unique<MultiscreenState>(config_, options, decoding_.get(parameters(), options, [&] {
    MultiscreenWeights all{.owner = this, .compute_dtype = options.compute_dtype, .layers = {}};
    for (const Layer& layer : layers_) all.layers.push_back(decoding_tile(layer, options));
    return all;
  }));
}

at::Tensor Multiscreen::decode(const at::Tensor& tokens_BC, std::span<DecodingState* const> states) const {
  const at::NoGradGuard no_grad;
  const std::vector<MultiscreenState*> sequences = sequences_of<MultiscreenState>(*this, tokens_BC, states);
  if (tokens_BC.size(1) != 1 || config_.position == "rope" || !token_by_token(*sequences.front()->weights())) {
    return decode_chunk(tokens_BC, sequences);
  }
  const at::Tensor x_B1D = embedded_token(tokens_BC);
  float* x = x_B1D.data_ptr<float>();
  decode_token(config_, sequences, x);
  const float scale = std::exp(s_F_.item<float>());
  for (int64_t i = 0; i < x_B1D.numel(); ++i) x[i] *= scale;
  return x_B1D;
}

/// embedded() of one token a sequence, without the temporary tensors.
at::Tensor Multiscreen::embedded_token(const at::Tensor& tokens_B1) const {
  if (!tokens_B1.is_cpu() || tokens_B1.scalar_type() != at::kLong) return embedded(tokens_B1);
  const int64_t B = tokens_B1.size(0), D = config_.hidden_size;
  const at::Tensor x_B1D = at::empty({B, 1, D}, at::kFloat);
  const double scale = std::exp(static_cast<double>(s_E_.item<float>()));
  for (int64_t b = 0; b < B; ++b) {
    const int64_t token = tokens_B1.const_data_ptr<int64_t>()[b * tokens_B1.stride(0)];
    if (token < 0 || token >= config_.vocab_size) return embedded(tokens_B1);  // says what is wrong
    const float* row = embed_.const_data_ptr<float>() + token * D;
    double squared = 0;
    for (int64_t d = 0; d < D; ++d) squared += static_cast<double>(row[d]) * row[d];
    const auto factor = static_cast<float>(squared > 1e-24 ? scale / std::sqrt(squared) : 0.0);  // as nn::unit_rows
    float* x = x_B1D.data_ptr<float>() + b * D;
    for (int64_t d = 0; d < D; ++d) x[d] = row[d] * factor;
  }
  return x_B1D;
}

at::Tensor Multiscreen::decode_chunk(const at::Tensor& tokens_BC, std::span<MultiscreenState* const> states) const {
  const MultiscreenWeights& weights = *states.front()->weights();
  std::vector<ops::ScreeningState*> layer_states(states.size());
  at::Tensor x_BCD = embedded(tokens_BC);
  for (MultiscreenState* state : states) state->reserve(tokens_BC.size(1));
  for (size_t l = 0; l < weights.layers.size(); ++l) {
    const DecodingTile& tile = weights.layers[l];
    for (size_t b = 0; b < states.size(); ++b) layer_states[b] = &states[b]->layer(l);
    ops::ScreeningProjections projected = project_heads(config_, tile.projection.dense(weights.compute_dtype), x_BCD);
    projected.q_BTHK = positioned_rows(config_, projected.q_BTHK, states);
    projected.k_BTHK = positioned_rows(config_, projected.k_BTHK, states);
    x_BCD = x_BCD + ops::linear(screen(layer_states, projected).flatten(2), tile.output.dense(weights.compute_dtype));
  }
  return nn::exp_scaled(x_BCD, s_F_);
}

}  // namespace tamis::models
