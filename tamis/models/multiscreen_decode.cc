// Decoding with a Multiscreen: the layers of `hidden`, with the past in a state instead of in the input.

#include <ATen/ATen.h>

#include "tamis/base/error.h"
#include "tamis/models/multiscreen.h"
#include "tamis/nn/rows.h"

namespace tamis::models {

std::shared_ptr<const MultiscreenWeights> Multiscreen::decoding_weights(at::ScalarType dtype) const {
  std::vector<std::pair<const void*, int64_t>> source;
  for (const Parameter& parameter : parameters()) {
    source.emplace_back(parameter.tensor.const_data_ptr(), parameter.tensor._version());
  }
  const std::lock_guard lock(decoding_mutex_);
  SharedWeights& shared = decoding_[dtype];
  if (auto alive = shared.weights.lock(); alive && shared.source == source) return alive;
  MultiscreenWeights all;
  for (const Layer& layer : layers_) all.push_back(tile_weights(layer, dtype));
  const auto made = std::make_shared<const MultiscreenWeights>(std::move(all));
  shared = {std::move(source), made};
  return made;
}

std::unique_ptr<DecodingState> Multiscreen::new_state(const ForwardOptions& options) const {
  const at::NoGradGuard no_grad;
  return std::make_unique<MultiscreenState>(config_, options, decoding_weights(options.compute_dtype));
}

at::Tensor Multiscreen::decode(const at::Tensor& tokens_BC, std::span<DecodingState* const> states) const {
  const at::NoGradGuard no_grad;
  std::vector<MultiscreenState*> sequences;
  for (DecodingState* state : states) {
    sequences.push_back(dynamic_cast<MultiscreenState*>(state));
    if (sequences.back() == nullptr || sequences.back()->weights() != sequences.front()->weights()) {
      fail(ExitCode::kRuntime, "multiscreen: the states of one call must come from one model, dtype and training step");
    }
  }
  if (sequences.empty() || tokens_BC.dim() != 2 || tokens_BC.size(0) != static_cast<int64_t>(sequences.size())) {
    fail(ExitCode::kRuntime, "multiscreen: tokens must have one row per state, but have shape {} for {} states",
         c10::str(tokens_BC.sizes()), sequences.size());
  }
  at::Tensor x_BCD = embedded(tokens_BC);
  std::vector<ops::ScreeningState*> layer_states(sequences.size());
  const MultiscreenWeights& weights = *sequences.front()->weights();
  for (size_t l = 0; l < weights.size(); ++l) {
    for (size_t b = 0; b < sequences.size(); ++b) layer_states[b] = &sequences[b]->layer(l);
    const auto screen = [&](const TileProjections& p) {
      // The stores live on the CPU, wherever the matrices are.
      const auto gate = p.gate_BTHV ? std::optional(p.gate_BTHV->cpu()) : std::nullopt;
      return ops::ScreeningState::step(layer_states, p.q_BTHK.cpu(), p.k_BTHK.cpu(), p.v_BTHV.cpu(), gate)
          .to(x_BCD.device());
    };
    x_BCD = apply_tiles(config_, weights[l], screen, x_BCD);
  }
  return nn::exp_scaled(x_BCD, s_F_);
}

}  // namespace tamis::models
