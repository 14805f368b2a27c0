// Screening with a gate in a stack: the tiles of a Multiscreen layer behind a norm.

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/models/mixers/mixers.h"
#include "tamis/ops/linear.h"
#include "tamis/ops/scratch.h"
#include "tamis/ops/screening/screening_layer.h"
#include "tamis/ops/screening/screening_state.h"

namespace tamis::models {
namespace {

using at::Tensor;

struct ScreeningMixerState final : MixerState {
  explicit ScreeningMixerState(ops::ScreeningState state) : state(std::move(state)) {}
  int64_t bytes() const override { return state.bytes(); }
  int64_t bytes_after(int64_t tokens) const override { return state.bytes_after(tokens); }
  void reserve(int64_t tokens) override { state.reserve(tokens); }
  void begin(int64_t tokens) override { state.reserve(tokens); }
  void end_token() override { state.advance(); }
  std::unique_ptr<MixerState> fork() const override { return std::make_unique<ScreeningMixerState>(state.fork()); }
  void save(std::ostream& out) const override { state.save(out); }
  void load(std::istream& in, int64_t position) override {
    state.load(in);
    if (state.position() == position) return;
    fail(ExitCode::kInput, "decoding state: a screening layer has seen {} tokens, not {}; the bytes are damaged",
         state.position(), position);
  }

  ops::ScreeningState state;
};

class ScreeningMixer final : public Mixer {
 public:
  ScreeningMixer(const StackConfig& config, at::Device device)
      : config_(config), layout_{config.num_attention_heads, config.key_dim, config.value_dim, /*gate=*/true} {
    const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
    const int64_t D = config.hidden_size, H = layout_.heads;
    projection_ = at::empty({2 * H * (layout_.key_dim + layout_.value_dim), D}, options);
    out_ = at::empty({D, H * layout_.value_dim}, options);
    s_w_ = at::empty({H}, options);
    s_r_ = at::empty({H}, options);
  }

  std::vector<Parameter> parameters() const override {
    return {{"qkvg_proj.weight", projection_}, {"o_proj.weight", out_}, {"s_w", s_w_}, {"s_r", s_r_}};
  }

  void initialise(Initialiser& initialiser) const override {
    initialiser.inner(projection_);  // queries, keys and values are scaled to unit length anyway
    initialiser.residual(out_);
    s_w_.copy_(at::linspace(0, std::log(config_.mipe_threshold), layout_.heads));
    s_r_.fill_(0);
  }

  Tensor forward(const Tensor& x_BTD, const MixerCall& call) const override {
    return ops::screening_layer(x_BTD, {call[0], call[1], call[2], call[3]}, layout_, options());
  }

  std::unique_ptr<MixerState> new_state() const override {
    const at::NoGradGuard no_grad;
    return std::make_unique<ScreeningMixerState>(ops::ScreeningState(s_w_.detach().cpu(), s_r_.detach().cpu(),
                                                                     layout_.key_dim, layout_.value_dim,
                                                                     {.mipe_threshold = config_.mipe_threshold}));
  }

  Tensor decode(const Tensor& x_BCD, const MixerCall& call, std::span<MixerState* const> states) const override {
    const ops::ScreeningProjections p = ops::split_projections(ops::linear(x_BCD, call[0]), layout_);
    std::vector<ops::ScreeningState*> own;
    for (MixerState* state : states) own.push_back(&static_cast<ScreeningMixerState*>(state)->state);
    // The stores live on the CPU, wherever the matrices are.
    const Tensor u = ops::ScreeningState::step(own, p.q_BTHK.cpu(), p.k_BTHK.cpu(), p.v_BTHV.cpu(), p.gate_BTHV->cpu());
    return ops::linear(u.to(x_BCD.device()).flatten(2), call[1]);
  }

  std::optional<TokenForm> token_form() const override {
    const int64_t H = layout_.heads, K = layout_.key_dim, V = layout_.value_dim;
    TokenForm form{.heads = {}, .head_out = V, .output = 1};
    for (int64_t h = 0; h < H; ++h) {
      const auto rows = [&](int64_t before, int64_t width) {
        return MatrixRows{0, before + h * width, before + (h + 1) * width};
      };
      form.heads.push_back({rows(0, K), rows(H * K, K), rows(2 * H * K, V), rows(2 * H * K + H * V, V)});
    }
    return form;
  }

  void step_head(int64_t head, const MixerCall&, MixerState& state, float* projected, float* out) const override {
    const int64_t K = layout_.key_dim, V = layout_.value_dim;
    float *q = projected, *k = q + K, *v = k + K, *gate = v + V;
    float* const scratch = ops::thread_memory<float>().take(ops::ScreeningState::head_scratch(K, V));
    static_cast<ScreeningMixerState&>(state).state.step_head(head, {q, k, v, gate, out}, scratch);
  }

  MixerFlops flops(int64_t length) const override {
    const auto T = static_cast<double>(length);
    MixerFlops flops;
    for (const double window : windows()) {
      const double span = std::min(std::ceil(window), T), keys = (span * (span + 1) / 2 + (T - span) * span) / T;
      flops.similarities += 2 * keys * static_cast<double>(layout_.key_dim);
      flops.values += 2 * keys * static_cast<double>(layout_.value_dim);
    }
    return flops;
  }

  /// Trim times Softmask: without TanhNorm and gate, what multiplies the value.
  ValuePath value_path(const Tensor& x_1TD, const MixerCall& call) const override {
    const ops::ScreeningProjections p = ops::split_projections(ops::linear(x_1TD, call[0]), layout_);
    ops::ScreeningOptions plain = options();
    plain.tanh_norm = false;
    return {p.v_BTHV, [p, plain, &call](const Tensor& v) {
              return ops::screening(p.q_BTHK, p.k_BTHK, v, call[2], call[3], plain);
            }};
  }

  std::vector<double> windows() const override {
    std::vector<double> result;
    const Tensor s_w = s_w_.detach().to(at::kCPU, at::kDouble);
    for (int64_t h = 0; h < layout_.heads; ++h) result.push_back(std::exp(s_w[h].item<double>()) + 1);
    return result;
  }

 private:
  ops::ScreeningOptions options() const { return {.mipe_threshold = config_.mipe_threshold}; }

  const StackConfig& config_;
  ops::ProjectionLayout layout_;
  Tensor projection_;  // [2 H K + 2 H V, D]: W_Q, W_K, W_V, W_G
  Tensor out_;         // [D, H V]
  Tensor s_w_, s_r_;   // [H]
};

}  // namespace

std::unique_ptr<Mixer> make_screening(const StackConfig& config, at::Device device) {
  return std::make_unique<ScreeningMixer>(config, device);
}

}  // namespace tamis::models
