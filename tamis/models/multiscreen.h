#pragma once

#include <memory>
#include <vector>

#include "tamis/models/decoding.h"
#include "tamis/models/model.h"
#include "tamis/models/multiscreen_config.h"
#include "tamis/models/multiscreen_layer.h"
#include "tamis/models/multiscreen_state.h"
#include "tamis/models/registry.h"

namespace tamis::models {

nlohmann::json complete_multiscreen(const nlohmann::json& config);
std::unique_ptr<Model> make_multiscreen(const nlohmann::json& complete_config, const Start& start);

/// Multiscreen, "Screening Is Enough", Eq. (1)-(3) and (15)-(18):
///
///   Wbar = rows of W_E scaled to unit length
///   x_0  = exp(s_E) Wbar[token];  x <- x + sum_h dx^(l,h), L times;  logits = exp(s_F) x Wbar^T
///   dx   = exp(s_O) (screening(x W_Q, x W_K, x W_V) * tanh(SiLU(x W_G))) W_O      per layer and head
///
/// `hidden` returns exp(s_F) x and `head_weight` Wbar. No final norm, no biases.
///
/// Decoding casts the weights once, when a state is made; states that are alive at the same time share one copy. A
/// token at a time on the CPU takes the path of multiscreen_token.h, chunks and rotary positions go through GEMMs.
/// Several threads may make states and decode at once. Do not train on while states are alive.
class Multiscreen final : public Model {
 public:
  Multiscreen(const MultiscreenConfig& config, const Start& start);

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
  std::vector<Tile> tiles() const override;
  int64_t relevance_maps() const override { return config_.num_hidden_layers * config_.num_attention_heads; }

 private:
  struct Layer {
    at::Tensor projection;     // [2 H K + 2 H V, D]: W_Q, W_K, W_V, W_G, each blocked by head
    at::Tensor output;         // [D, H V]
    at::Tensor s_w, s_r, s_O;  // [H]; s_r is no parameter where r is fixed
  };

  void initialise(uint64_t seed);
  ops::ScreeningWeights tile_weights(const Layer& layer, at::ScalarType dtype) const;
  at::Tensor embedded(const at::Tensor& tokens_BT) const;
  at::Tensor next_layer(const ops::ScreeningWeights& weights, const at::Tensor& x_BTD, const ForwardOptions& options,
                        ops::Keep keep) const;
  at::Tensor observed_layer(const std::string& name, const ops::ScreeningWeights& weights, const at::Tensor& x_BTD,
                            const ForwardOptions& options) const;
  DecodingTile decoding_tile(const Layer& layer, const ForwardOptions& options) const;
  at::Tensor embedded_token(const at::Tensor& tokens_B1) const;
  at::Tensor decode_chunk(const at::Tensor& tokens_BC, std::span<MultiscreenState* const> states) const;

  MultiscreenConfig config_;
  nlohmann::json json_;
  at::Tensor embed_;      // W_E [N, D]
  at::Tensor s_E_, s_F_;  // []
  std::vector<Layer> layers_;

  mutable SharedWeights<MultiscreenWeights> decoding_;
};

}  // namespace tamis::models
