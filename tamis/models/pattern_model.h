#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tamis/models/layer.h"
#include "tamis/models/model.h"
#include "tamis/models/model_config.h"
#include "tamis/models/sequence_state.h"
#include "tamis/models/shared_weights.h"

namespace tamis::models {

/// The one model family: an embedding, a pattern of layers (layer.h) and a head.
///
///   x_0 = W_E[token];  x <- layer(x), L times;  logits = norm(x) W^T,  W = W_E when tied
///
/// and with the unit-length embedding of "Screening Is Enough", Eq. (1)-(3), Wbar being W_E with rows of length 1,
///
///   x_0 = exp(s_E) Wbar[token];  logits = exp(s_F) norm(x) Wbar^T
///
/// Without norms, norm(x) = x; with a soft cap c, logits z become c tanh(z / c). Multiscreen, the Transformer, SWAX and
/// mixtures of them are settings (model_config.h).
///
/// Decoding casts the weights once, when a state is made; states that are alive at the same time share one copy. Single
/// tokens on the CPU go through token_pass.h, chunks through matrix products. Several threads may make states and
/// decode at once. Do not train while states are alive.
class PatternModel final : public Model {
 public:
  PatternModel(const ModelConfig& config, const Start& start);

  const nlohmann::json& config() const override { return json_; }
  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t hidden_size() const override { return config_.hidden_size; }
  int64_t training_length() const override { return config_.max_position_embeddings; }

  std::vector<Parameter> parameters() const override;
  std::vector<at::Tensor> buffers() const override;
  std::vector<nn::NamedTensor> checkpoint_tensors(std::span<const at::Tensor> like_parameters) const override;

  at::Tensor hidden(const at::Tensor& tokens_BT, const ForwardOptions& options) const override;
  at::Tensor head_weight() const override;
  std::optional<double> logit_soft_cap() const override { return config_.logit_soft_cap; }

  std::unique_ptr<DecodingState> new_state(const ForwardOptions& options) const override;
  at::Tensor decode(const at::Tensor& tokens_BC, std::span<DecodingState* const> states) const override;

  std::vector<ContextTraffic> context_traffic(int64_t tokens, int64_t rank, int64_t size,
                                              at::ScalarType dtype) const override;
  void set_as_trained() const override;
  Flops flops_per_token(int64_t length, bool expand_windows) const override;
  std::vector<RelevanceMap> relevance(const at::Tensor& tokens_1T, const ForwardOptions& options) const override;
  at::Tensor attention_mass(const at::Tensor& tokens_1T, int64_t first, int64_t last,
                            const ForwardOptions& options) const override;
  std::vector<ScreeningHead> screening_heads() const override;
  int64_t relevance_maps() const override;

 private:
  void initialise(const Start& start);
  std::vector<LayerParameter> all_parameters() const;
  /// Settings of all layers; throws ExitCode::kUsage when windows are to be expanded that the model does not have.
  LayerSettings settings(const ForwardOptions& options) const;
  std::optional<double> expand_beyond(bool expand_windows) const;

  /// Throws ExitCode::kInput for an id out of range, which waits for the device that holds the ids.
  at::Tensor embedded(const at::Tensor& tokens_BT) const;
  /// The same for ids that are in range.
  at::Tensor looked_up(const at::Tensor& tokens_BT) const;
  /// What follows the last layer: norm, and exp(s_F).
  at::Tensor finished(const at::Tensor& x_BTD) const;
  // The same for one token of each sequence, without temporary tensors.
  at::Tensor embedded_token(const at::Tensor& tokens_B1) const;
  at::Tensor finished_token(const at::Tensor& x_B1D) const;

  DecodingLayer decoding_layer(const Layer& layer, const ForwardOptions& options) const;
  DecodingWeights decoding_weights(const ForwardOptions& options) const;
  at::Tensor decode_chunk(const at::Tensor& tokens_BC, std::span<SequenceState* const> states) const;

  /// Calls visit(layer, input, call) for every layer of a forward pass over one sequence.
  template <typename Visit>
  void inspect_layers(const at::Tensor& tokens_1T, const ForwardOptions& options, const Visit& visit) const;

  ModelConfig config_;
  nlohmann::json json_;
  at::Tensor embed_;           // W_E [N, D]
  at::Tensor s_E_, s_F_;       // [], with the unit-length embedding
  at::Tensor head_;            // [N, D]; undefined when tied
  at::Tensor norm_;            // [D]; undefined without a weight
  at::Tensor position_scale_;  // [T_train]; undefined unless it is learned
  std::vector<Layer> layers_;

  mutable SharedWeights<DecodingWeights> decoding_;
};

}  // namespace tamis::models
