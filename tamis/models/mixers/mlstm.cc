// mLSTM with an output gate, as in xLSTM-large: keys half as wide as values, gates with biases, soft-capped.

#include "tamis/ops/mlstm/mlstm.h"

#include <ATen/ATen.h>

#include <cmath>
#include <istream>
#include <limits>
#include <ostream>

#include "tamis/base/error.h"
#include "tamis/models/mixers/mixers.h"
#include "tamis/nn/norm.h"
#include "tamis/ops/linear.h"

namespace tamis::models {
namespace {

using at::Tensor;

constexpr double kGateCap = 15.0;

struct MlstmMixerState final : MixerState {
  MlstmMixerState(int64_t H, int64_t K, int64_t V, at::Device device) {
    const auto options = at::TensorOptions(device).dtype(at::kFloat);
    state = {at::zeros({1, H, K, V}, options), at::zeros({1, H, K}, options), at::zeros({1, H}, options)};
  }

  int64_t bytes() const override {
    return static_cast<int64_t>(state.C_BHKV.nbytes() + state.n_BHK.nbytes() + state.m_BH.nbytes());
  }
  int64_t bytes_after(int64_t) const override { return bytes(); }
  std::unique_ptr<MixerState> fork() const override {
    auto copy = std::make_unique<MlstmMixerState>(*this);
    for (Tensor* x : {&copy->state.C_BHKV, &copy->state.n_BHK, &copy->state.m_BH}) *x = x->clone();
    return copy;
  }

  void save(std::ostream& out) const override {
    for (const Tensor& x : {state.C_BHKV, state.n_BHK, state.m_BH}) {
      const Tensor plain = x.cpu().contiguous();
      out.write(static_cast<const char*>(plain.const_data_ptr()), static_cast<std::streamsize>(plain.nbytes()));
    }
  }
  void load(std::istream& in, int64_t) override {
    for (Tensor* x : {&state.C_BHKV, &state.n_BHK, &state.m_BH}) {
      const Tensor read = at::empty(x->sizes(), x->options().device(at::kCPU));
      in.read(static_cast<char*>(read.mutable_data_ptr()), static_cast<std::streamsize>(read.nbytes()));
      if (!in) fail(ExitCode::kInput, "decoding state: ends in the middle of an mLSTM's memory");
      *x = read.to(x->device());
    }
  }

  ops::MlstmState state;  // contiguous, and of nobody else
};

class MlstmMixer final : public Mixer {
 public:
  MlstmMixer(const StackConfig& config, at::Device device)
      : config_(config),
        H_(config.mlstm_heads),
        K_(config.hidden_size / (2 * config.mlstm_heads)),
        V_(config.hidden_size / config.mlstm_heads) {
    const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
    const int64_t D = config.hidden_size;
    projection_ = at::empty({2 * H_ * K_ + 2 * H_ * V_, D}, options);
    gates_ = at::empty({2 * H_, D}, options);
    input_bias_ = at::empty({H_}, options);
    forget_bias_ = at::empty({H_}, options);
    norm_ = at::empty({H_ * V_}, options);
    out_ = at::empty({D, H_ * V_}, options);
  }

  std::vector<Parameter> parameters() const override {
    return {{"qkvo_proj.weight", projection_}, {"gates.weight", gates_}, {"input_bias", input_bias_},
            {"forget_bias", forget_bias_},     {"norm.weight", norm_},   {"out_proj.weight", out_}};
  }

  void initialise(Initialiser& initialiser) const override {
    initialiser.inner(projection_);
    initialiser.inner(gates_);
    input_bias_.fill_(-10);                      // writes little at first
    forget_bias_.copy_(at::linspace(3, 6, H_));  // remembers for tens to hundreds of tokens
    norm_.fill_(1);
    initialiser.residual(out_);
  }

  Tensor forward(const Tensor& x_BTD, const MixerCall& call) const override {
    const Projected p = project(x_BTD, call);
    return put_out(std::get<0>(ops::mlstm(p.q, p.k, p.v, p.i, p.f)), p, call);
  }

  std::unique_ptr<MixerState> new_state() const override {
    return std::make_unique<MlstmMixerState>(H_, K_, V_, projection_.device());
  }

  Tensor decode(const Tensor& x_BCD, const MixerCall& call, std::span<MixerState* const> states) const override {
    const Projected p = project(x_BCD, call);
    const auto joint = [&](Tensor ops::MlstmState::*part) {
      std::vector<Tensor> parts;
      for (MixerState* state : states) parts.push_back(static_cast<MlstmMixerState*>(state)->state.*part);
      return at::cat(parts);
    };
    const ops::MlstmState before = {joint(&ops::MlstmState::C_BHKV), joint(&ops::MlstmState::n_BHK),
                                    joint(&ops::MlstmState::m_BH)};
    const auto [h, C, n, m] = ops::mlstm(p.q, p.k, p.v, p.i, p.f, {.state = before});
    for (size_t b = 0; b < states.size(); ++b) {
      const auto row = [&](const Tensor& x) { return x.narrow(0, static_cast<int64_t>(b), 1).clone(); };
      static_cast<MlstmMixerState*>(states[b])->state = {row(C), row(n), row(m)};
    }
    return put_out(h, p, call);
  }

  std::optional<TokenForm> token_form() const override {
    TokenForm form{.heads = {}, .head_out = V_, .output = 5};
    for (int64_t h = 0; h < H_; ++h) {
      const auto rows = [&](int64_t before, int64_t width) {
        return MatrixRows{0, before + h * width, before + (h + 1) * width};
      };
      const int64_t keys = 2 * H_ * K_, values = H_ * V_;
      form.heads.push_back({rows(0, K_), rows(H_ * K_, K_), rows(keys, V_), rows(keys + values, V_),
                            MatrixRows{1, h, h + 1}, MatrixRows{1, H_ + h, H_ + h + 1}});
    }
    return form;
  }

  void step_head(int64_t head, const MixerCall& call, MixerState& mixer_state, float* projected,
                 float* out) const override {
    const ops::MlstmState& state = static_cast<MlstmMixerState&>(mixer_state).state;
    float *q = projected, *k = q + K_, *v = k + K_, *o = v + V_, *gates = o + V_;
    const auto capped = [&](float gate, const Tensor& bias) {
      return static_cast<float>(kGateCap * std::tanh((gate + bias.const_data_ptr<float>()[head]) / kGateCap));
    };
    ops::mlstm_token({.key_dim = K_,
                      .value_dim = V_,
                      .q = q,
                      .k = k,
                      .v = v,
                      .i = capped(gates[0], call[2]),
                      .f = capped(gates[1], call[3]),
                      .C = state.C_BHKV.mutable_data_ptr<float>() + head * K_ * V_,
                      .n = state.n_BHK.mutable_data_ptr<float>() + head * K_,
                      .m = state.m_BH.mutable_data_ptr<float>() + head,
                      .h = out});
    double mean = 0, squared = 0;
    for (int64_t d = 0; d < V_; ++d) mean += out[d];
    mean /= static_cast<double>(V_);
    for (int64_t d = 0; d < V_; ++d) squared += (out[d] - mean) * (out[d] - mean);
    const double inverse = 1 / std::sqrt(squared / static_cast<double>(V_) + config_.norm_eps);
    const float* const weight = call[4].const_data_ptr<float>() + head * V_;
    for (int64_t d = 0; d < V_; ++d) {
      out[d] = static_cast<float>((out[d] - mean) * inverse) * weight[d] / (1 + std::exp(-o[d]));
    }
  }

  /// The memory fades, is written and is read, a multiply-add each; it does not depend on the length.
  MixerFlops flops(int64_t) const override {
    const auto memory = static_cast<double>(H_ * K_ * V_);
    return {.similarities = 6 * memory, .values = 0};
  }

  ValuePath value_path(const Tensor& x_1TD, const MixerCall& call) const override {
    const Projected p = project(x_1TD, call);
    return {p.v, [p](const Tensor& v) { return std::get<0>(ops::mlstm(p.q, p.k, v, p.i, p.f)); }};
  }
  std::vector<double> windows() const override {
    return std::vector<double>(static_cast<size_t>(H_), std::numeric_limits<double>::infinity());
  }

 private:
  struct Projected {
    Tensor q, k, v;  // [B, T, H, ...]
    Tensor output;   // o, [B, T, H V]
    Tensor i, f;     // [B, T, H], float32
  };

  Projected project(const Tensor& x_BTD, const MixerCall& call) const {
    const auto parts = ops::linear(x_BTD, call[0]).split_with_sizes({H_ * K_, H_ * K_, H_ * V_, H_ * V_}, -1);
    const auto gates = ops::linear(x_BTD, call[1]).to(at::kFloat).chunk(2, -1);
    const auto capped = [](const Tensor& x) { return at::tanh(x / kGateCap) * kGateCap; };
    const auto heads = [&](const Tensor& x) { return x.unflatten(-1, {H_, -1}); };
    return {heads(parts[0]),           heads(parts[1]), heads(parts[2]), parts[3], capped(gates[0] + call[2]),
            capped(gates[1] + call[3])};
  }

  Tensor put_out(const Tensor& h_BTHV, const Projected& p, const MixerCall& call) const {
    const Tensor normalised = nn::layer_norm(h_BTHV, std::nullopt, config_.norm_eps).flatten(2) * call[4];
    const Tensor gated = normalised * at::sigmoid(p.output);
    return ops::linear(gated.to(call[5].scalar_type()), call[5]);
  }

  const StackConfig& config_;
  int64_t H_, K_, V_;
  Tensor projection_;                // [2 H K + 2 H V, D]: W_q, W_k, W_v, W_o
  Tensor gates_;                     // [2 H, D]: of i and f
  Tensor input_bias_, forget_bias_;  // [H]
  Tensor norm_;                      // [H V]
  Tensor out_;                       // [D, H V]
};

}  // namespace

void check_mlstm_sizes(const StackConfig& config) {
  if (config.hidden_size % (2 * config.mlstm_heads) != 0) {
    fail(ExitCode::kUsage,
         "model: for mLSTM twice \"num_attention_heads\", or \"mlstm_heads\" if it is given, must divide "
         "\"hidden_size\" "
         "{}, but is {}",
         config.hidden_size, 2 * config.mlstm_heads);
  }
}

std::unique_ptr<Mixer> make_mlstm(const StackConfig& config, at::Device device) {
  return std::make_unique<MlstmMixer>(config, device);
}

}  // namespace tamis::models
