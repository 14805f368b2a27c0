#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tamis/models/decoding.h"
#include "tamis/models/mixer.h"
#include "tamis/models/model.h"
#include "tamis/models/registry.h"
#include "tamis/models/stack_config.h"
#include "tamis/models/stack_state.h"

namespace tamis::models {

nlohmann::json complete_stack(const nlohmann::json& config);
std::unique_ptr<Model> make_stack(const nlohmann::json& complete_config, const Start& start);

/// A stack of layers, each a mixer and a gated MLP with RMSNorm before both, as in LLaMA; what mixes is the layer's
/// letter in the pattern (mixer.h): the Transformer and its variants, SWAX, any mixture.
///
///   x_0 = W_E[token];  x <- x + mixer(norm(x));  x <- x + W_down (SiLU(W_gate n) * W_up n), n = norm(x);  L times
///   logits = norm(x) W^T       W = W_E when tied
class Stack final : public Model {
 public:
  Stack(const StackConfig& config, const Start& start);

  const nlohmann::json& config() const override { return json_; }
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t hidden_size() const override { return config_.hidden_size; }
  int64_t training_length() const override { return config_.max_position_embeddings; }

  std::vector<Parameter> parameters() const override;
  std::vector<nn::NamedTensor> checkpoint_tensors(std::span<const at::Tensor> like_parameters) const override;

  at::Tensor hidden(const at::Tensor& tokens_BT, const ForwardOptions& options) const override;
  at::Tensor head_weight() const override;

  std::unique_ptr<DecodingState> new_state(const ForwardOptions& options) const override;
  at::Tensor decode(const at::Tensor& tokens_BC, std::span<DecodingState* const> states) const override;

  Flops flops_per_token(int64_t length, bool expand_windows) const override;
  std::vector<RelevanceMap> relevance(const at::Tensor& tokens_1T, const ForwardOptions& options) const override;
  at::Tensor attention_mass(const at::Tensor& tokens_1T, int64_t first, int64_t last,
                            const ForwardOptions& options) const override;
  std::vector<Tile> tiles() const override { return {}; }
  int64_t relevance_maps() const override;

 private:
  struct Layer {
    std::unique_ptr<Mixer> mixer;
    at::Tensor mixer_norm, mlp_norm;  // [D]
    at::Tensor gate_up;               // [2 F, D]: W_gate, W_up; without a gate [F, D]
    at::Tensor down;                  // [D, F]
  };
  /// A layer's tensors as a call wants them, in this order: mixer_norm, mlp_norm, gate_up, down, the mixer's own, and
  /// the shared position scale where there is one.
  std::vector<at::Tensor> layer_weights(const Layer& layer, at::ScalarType dtype) const;
  class LayerCall;
  void initialise(uint64_t seed);
  void check_options(const ForwardOptions& options) const;
  StackWeights decoding_weights(const ForwardOptions& options) const;
  DecodingLayer decoding_layer(const Layer& layer, const ForwardOptions& options) const;
  at::Tensor embedded(const at::Tensor& tokens_BT) const;
  at::Tensor final_norm(const at::Tensor& x_BTD) const;

  StackConfig config_;
  nlohmann::json json_;
  at::Tensor embed_;           // W_E [N, D]
  at::Tensor head_;            // [N, D]; undefined when tied
  at::Tensor norm_;            // [D]; undefined without a weight
  at::Tensor position_scale_;  // [T_train]; undefined unless it is learned
  std::vector<Layer> layers_;

  mutable SharedWeights<StackWeights> decoding_;
};

}  // namespace tamis::models
