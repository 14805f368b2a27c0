#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "tamis/models/key_value_cache.h"
#include "tamis/models/mixer.h"
#include "tamis/models/named_weights.h"
#include "tamis/nn/rotary.h"
#include "tamis/ops/attention_token.h"

namespace tamis::models {

/// The trained tensors of an attention layer; undefined where the configuration has none.
struct AttentionWeights {
  at::Tensor qkv;                  // [3 H d, D]
  at::Tensor out;                  // [D, H d]
  at::Tensor q_norm, k_norm;       // [d], with QKNorm
  at::Tensor log_scale, log_bias;  // [H], of Scalable-Softmax

  template <typename Self, typename Visit>
  static void visit(Self& self, const Visit& visit) {
    visit("qkv_proj.weight", self.qkv);
    visit("o_proj.weight", self.out);
    visit("q_norm.weight", self.q_norm);
    visit("k_norm.weight", self.k_norm);
    visit("log_scale", self.log_scale);
    visit("log_bias", self.log_bias);
  }
};

/// What attention depends on besides queries, keys and values.
struct AttentionCall {
  const AttentionWeights& weights;
  const MixerCall& mixer;
  int64_t key_start = 0;  // position of the first key
};

/// Queries, keys and values, position-encoded, [B, T, H, d] -> [B, T_q, H, d].
using Attend =
    std::function<at::Tensor(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionCall& call)>;

/// The same for one query of one head; token.scale is 1 / sqrt(d) already.
using AttendToken = std::function<void(ops::AttentionToken token, int64_t head, const AttentionWeights& weights)>;

/// How one kind of attention differs from another.
struct AttentionKind {
  bool rotary = false;            // queries and keys are rotated
  bool scalable = false;          // applies config.ssmax
  bool strict = false;            // a query does not see its own key
  bool ring = false;              // `attend` finds the keys of other processes; else they are gathered
  std::optional<int64_t> window;  // keys that a query sees

  /// Positions from the oldest key that a query sees to its own.
  std::optional<int64_t> reach() const { return window ? std::optional(*window + (strict ? 1 : 0)) : std::nullopt; }
};

/// Multi-head attention with one matrix for queries, keys and values. Projections, QKNorm and rotary embedding are
/// here; `attend` computes the weights and sums the values.
class AttentionMixer final : public Mixer {
 public:
  /// Without attend_token, single tokens are decoded as chunks.
  AttentionMixer(const ModelConfig& config, const AttentionKind& kind, Attend attend, AttendToken attend_token,
                 at::Device device);

  std::vector<LayerParameter> parameters() const override { return parameters_of(own_); }
  void initialise(Initialiser& initialiser) const override;
  at::Tensor forward(const at::Tensor& x_BTD, const MixerCall& call) const override;
  HeadMatrices head_matrices(const std::vector<at::Tensor>& weights) const override;
  std::unique_ptr<MixerState> new_state(std::optional<double> expand_beyond) const override;
  at::Tensor decode(const at::Tensor& projected_BCHR, const MixerCall& call,
                    std::span<MixerState* const> states) const override;
  std::optional<HeadStep> head_step(const MixerCall& call) const override;
  MixerFlops flops(int64_t length, std::optional<double> expand_beyond) const override;
  ContextTraffic context_traffic(int64_t tokens, int64_t rank, int64_t size, at::ScalarType dtype) const override;
  ValuePath value_path(const at::Tensor& x_1TD, const MixerCall& call) const override;
  std::vector<double> windows() const override;

 private:
  struct Projected {
    at::Tensor q, k, v;  // [B, T, H, d]
  };
  /// Applies QKNorm; the rotation, which depends on the position, comes after.
  Projected normalised(const Projected& raw, const AttentionWeights& weights) const;
  Projected project(const at::Tensor& x_BTD, const AttentionWeights& weights) const;
  /// Rows that each head needs of the processes before.
  std::vector<int64_t> halos(std::optional<int64_t> window) const;
  /// Attention of the own tokens to those of all processes of call.context.
  at::Tensor attend_across(Projected p, const AttentionWeights& weights, const MixerCall& call) const;
  std::optional<nn::RotaryOptions> rotary() const;
  void rotate(Projected& projected, int64_t position) const;

  ModelConfig config_;
  AttentionKind kind_;
  Attend attend_;
  AttendToken attend_token_;
  AttentionWeights own_;
};

/// Throw ExitCode::kUsage when heads do not divide the width or, rotated, are odd.
void check_attention_sizes(const ModelConfig& config);
void check_rotary_sizes(const ModelConfig& config);

}  // namespace tamis::models
