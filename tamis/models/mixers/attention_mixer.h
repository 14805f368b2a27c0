#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "tamis/models/key_value_cache.h"
#include "tamis/models/mixer.h"
#include "tamis/nn/rotary.h"
#include "tamis/ops/attention_token.h"

namespace tamis::models {

/// Queries, keys and values, position-encoded, [B, T, H, d], and where the first key stands -> [B, T_q, H, d].
using Attend = std::function<at::Tensor(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                        int64_t key_start, const MixerCall& call)>;

/// The same for one query of one head; token.scale is 1 / sqrt(d) already.
using AttendToken = std::function<void(ops::AttentionToken token, int64_t head, const MixerCall& call)>;

/// How one kind of attention differs from another.
struct AttentionKind {
  bool rotary = false;            // queries and keys are rotated
  bool scalable = false;          // has what config.ssmax asks for
  bool strict = false;            // a query does not see its own key
  std::optional<int64_t> window;  // keys that a query sees
};

/// Multi-head attention with one matrix for queries, keys and values: projections, QKNorm and rotary embedding here,
/// what happens between them in `attend`.
class AttentionMixer final : public Mixer {
 public:
  /// Without attend_token tokens take the way of chunks.
  AttentionMixer(const StackConfig& config, const AttentionKind& kind, Attend attend, AttendToken attend_token,
                 at::Device device);

  std::vector<Parameter> parameters() const override;
  void initialise(Initialiser& initialiser) const override;
  at::Tensor forward(const at::Tensor& x_BTD, const MixerCall& call) const override;
  std::unique_ptr<MixerState> new_state() const override;
  at::Tensor decode(const at::Tensor& x_BCD, const MixerCall& call, std::span<MixerState* const> states) const override;
  std::optional<TokenForm> token_form() const override;
  void step_head(int64_t head, const MixerCall& call, MixerState& state, float* projected, float* out) const override;
  MixerFlops flops(int64_t length) const override;
  ValuePath value_path(const at::Tensor& x_1TD, const MixerCall& call) const override;
  std::vector<double> windows() const override;

 private:
  struct Projected {
    at::Tensor q, k, v;  // [B, T, H, d]
  };
  /// Without the rotation, which wants a position.
  Projected project(const at::Tensor& x_BTD, const MixerCall& call) const;
  std::optional<nn::RotaryOptions> rotary() const;
  void rotate(Projected& projected, int64_t position) const;
  at::Tensor put_out(const at::Tensor& mixed_BTHV, const MixerCall& call) const;

  const StackConfig& config_;
  AttentionKind kind_;
  Attend attend_;
  AttendToken attend_token_;
  at::Tensor qkv_;                   // [3 H d, D]
  at::Tensor out_;                   // [D, H d]
  at::Tensor q_norm_, k_norm_;       // [d]; undefined without QKNorm
  at::Tensor log_scale_, log_bias_;  // [H]; undefined unless learned
};

/// Throw ExitCode::kUsage when heads do not divide the width or, rotated, are odd.
void check_attention_sizes(const StackConfig& config);
void check_rotary_sizes(const StackConfig& config);

}  // namespace tamis::models
