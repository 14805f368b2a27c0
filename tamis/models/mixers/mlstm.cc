// mLSTM with an output gate, as in xLSTM-large: keys half as wide as values, gates with biases, soft-capped.

#include "tamis/ops/mlstm/mlstm.h"

#include <ATen/ATen.h>

#include <cmath>
#include <istream>
#include <limits>
#include <ostream>

#include "tamis/base/error.h"
#include "tamis/distributed/context_group.h"
#include "tamis/models/mixers/mixers.h"
#include "tamis/models/named_weights.h"
#include "tamis/nn/activation.h"
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

  ops::MlstmState state;  // contiguous, not shared
};

/// The trained tensors of an mLSTM layer.
struct MlstmWeights {
  Tensor projection;               // [2 H K + 2 H V, D]: W_q, W_k, W_v, W_o
  Tensor gates;                    // [2 H, D]: of i and f
  Tensor input_bias, forget_bias;  // [H]
  Tensor norm;                     // [H V]
  Tensor out;                      // [D, H V]

  template <typename Self, typename Visit>
  static void visit(Self& self, const Visit& visit) {
    visit("qkvo_proj.weight", self.projection);
    visit("gates.weight", self.gates);
    visit("input_bias", self.input_bias);
    visit("forget_bias", self.forget_bias);
    visit("norm.weight", self.norm);
    visit("out_proj.weight", self.out);
  }
};

/// Of a number or a tensor.
template <typename Number>
Number capped(const Number& gate) {
  return nn::soft_capped(gate, kGateCap);
}

class MlstmMixer final : public Mixer {
 public:
  MlstmMixer(const ModelConfig& config, at::Device device)
      : config_(config),
        H_(config.mlstm_heads),
        K_(config.hidden_size / (2 * config.mlstm_heads)),
        V_(config.hidden_size / config.mlstm_heads) {
    const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
    const int64_t D = config.hidden_size;
    own_ = {.projection = at::empty({2 * H_ * K_ + 2 * H_ * V_, D}, options),
            .gates = at::empty({2 * H_, D}, options),
            .input_bias = at::empty({H_}, options),
            .forget_bias = at::empty({H_}, options),
            .norm = at::empty({H_ * V_}, options),
            .out = at::empty({D, H_ * V_}, options)};
  }

  std::vector<LayerParameter> parameters() const override { return parameters_of(own_); }

  void initialise(Initialiser& initialiser) const override {
    initialiser.inner(own_.projection);
    initialiser.inner(own_.gates);
    own_.input_bias.fill_(-10);                      // writes little at first
    own_.forget_bias.copy_(at::linspace(3, 6, H_));  // remembers for tens to hundreds of tokens
    own_.norm.fill_(1);
    initialiser.residual(own_.out);
  }

  Tensor forward(const Tensor& x_BTD, const MixerCall& call) const override {
    const MlstmWeights weights = named(own_, call.weights);
    const Projected p = project(x_BTD, weights);
    const Tensor h = call.context ? remembered_across(p, call)
                                  : std::get<0>(ops::mlstm(p.q, p.k, p.v, p.i, p.f, {.document = call.document}));
    const Tensor gated = gated_output(h, p, weights);
    return ops::linear(gated.to(weights.out.scalar_type()), weights.out);
  }

  HeadMatrices head_matrices(const std::vector<Tensor>& weights) const override {
    const MlstmWeights own = named(own_, weights);
    std::vector<Tensor> parts = own.projection.split_with_sizes({H_ * K_, H_ * K_, H_ * V_, H_ * V_});
    for (const Tensor& gate : own.gates.chunk(2)) parts.push_back(gate);
    return {H_, rows_by_head(parts, H_), own.out};
  }

  std::unique_ptr<MixerState> new_state(std::optional<double> /*expand_beyond*/) const override {
    return std::make_unique<MlstmMixerState>(H_, K_, V_, own_.norm.device());
  }

  Tensor decode(const Tensor& projected_BCHR, const MixerCall& call,
                std::span<MixerState* const> states) const override {
    const MlstmWeights weights = named(own_, call.weights);
    const auto parts = projected_BCHR.split_with_sizes({K_, K_, V_, V_, 1, 1}, -1);
    const auto gate = [&](size_t part) { return parts[part].squeeze(-1).to(at::kFloat); };
    const Projected p = {parts[0],
                         parts[1],
                         parts[2],
                         parts[3].flatten(2),
                         capped(gate(4) + weights.input_bias),
                         capped(gate(5) + weights.forget_bias)};
    const auto joint = [&](Tensor ops::MlstmState::*part) {
      std::vector<Tensor> rows;
      for (MixerState* state : states) rows.push_back(static_cast<MlstmMixerState*>(state)->state.*part);
      return at::cat(rows);
    };
    const ops::MlstmState before = {joint(&ops::MlstmState::C_BHKV), joint(&ops::MlstmState::n_BHK),
                                    joint(&ops::MlstmState::m_BH)};
    const auto [h, C, n, m] = ops::mlstm(p.q, p.k, p.v, p.i, p.f, {.state = before});
    for (size_t b = 0; b < states.size(); ++b) {
      const auto row = [&](const Tensor& x) { return x.narrow(0, static_cast<int64_t>(b), 1).clone(); };
      static_cast<MlstmMixerState*>(states[b])->state = {row(C), row(n), row(m)};
    }
    return gated_output(h, p, weights).to(projected_BCHR.scalar_type()).unflatten(-1, {H_, V_});
  }

  std::optional<HeadStep> head_step(const MixerCall& call) const override {
    const MlstmWeights weights = named(own_, call.weights);
    return [K = K_, V = V_, eps = config_.norm_eps, weights](int64_t head, MixerState& mixer_state, float* projected,
                                                             float* out) {
      const ops::MlstmState& state = static_cast<MlstmMixerState&>(mixer_state).state;
      float *q = projected, *k = q + K, *v = k + K, *o = v + V, *gates = o + V;
      ops::mlstm_token({.key_dim = K,
                        .value_dim = V,
                        .q = q,
                        .k = k,
                        .v = v,
                        .i = capped(gates[0] + weights.input_bias.const_data_ptr<float>()[head]),
                        .f = capped(gates[1] + weights.forget_bias.const_data_ptr<float>()[head]),
                        .C = state.C_BHKV.mutable_data_ptr<float>() + head * K * V,
                        .n = state.n_BHK.mutable_data_ptr<float>() + head * K,
                        .m = state.m_BH.mutable_data_ptr<float>() + head,
                        .h = out});
      nn::layer_norm_row(out, weights.norm.const_data_ptr<float>() + head * V, V, eps, out);
      for (int64_t d = 0; d < V; ++d) out[d] *= nn::sigmoid(o[d]);
    };
  }

  /// The memory is multiplied by the forget gate, written and read: a multiply-add each, whatever the length.
  MixerFlops flops(int64_t /*length*/, std::optional<double> /*expand_beyond*/) const override {
    const auto memory = static_cast<double>(H_ * K_ * V_);
    return {.similarities = 6 * memory, .values = 0};
  }

  /// The state, which is float32, to the next process, and its gradient to the one before.
  ContextTraffic context_traffic(int64_t /*tokens*/, int64_t rank, int64_t size, at::ScalarType) const override {
    const int64_t state = H_ * (K_ * V_ + K_ + 1) * static_cast<int64_t>(sizeof(float));
    return {.forward = rank + 1 < size ? state : 0,
            .backward = rank > 0 ? state : 0,
            .forward_messages = size - 1,
            .backward_messages = size - 1};
  }

  ValuePath value_path(const Tensor& x_1TD, const MixerCall& call) const override {
    const Projected p = project(x_1TD, named(own_, call.weights));
    return {p.v, [p, document = call.document](const Tensor& v) {
              return std::get<0>(ops::mlstm(p.q, p.k, v, p.i, p.f, {.document = document}));
            }};
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

  Projected project(const Tensor& x_BTD, const MlstmWeights& weights) const {
    const auto parts =
        ops::linear(x_BTD, weights.projection).split_with_sizes({H_ * K_, H_ * K_, H_ * V_, H_ * V_}, -1);
    const auto gates = ops::linear(x_BTD, weights.gates).to(at::kFloat).chunk(2, -1);
    const auto heads = [&](const Tensor& x) { return x.unflatten(-1, {H_, -1}); };
    return {heads(parts[0]),
            heads(parts[1]),
            heads(parts[2]),
            parts[3],
            capped(gates[0] + weights.input_bias),
            capped(gates[1] + weights.forget_bias)};
  }

  /// h of the own tokens, with the state that the process before has reached, which the next process continues.
  Tensor remembered_across(const Projected& p, const MixerCall& call) const {
    distributed::ContextGroup& context = *call.context;
    const int64_t B = p.q.size(0), T = p.q.size(1), start = context.rank() * T;
    const auto options = at::TensorOptions(p.q.device()).dtype(at::kFloat);
    std::vector<Tensor> state = context.from_left(
        {at::zeros({B, H_, K_, V_}, options), at::zeros({B, H_, K_}, options), at::zeros({B, H_}, options)}, p.i);
    std::optional<Tensor> document;
    if (call.document) {
      document = call.document->narrow(1, start, T);
      if (start > 0) {  // the state ends with its document
        const Tensor continues = call.document->select(1, start - 1).eq(document->select(1, 0)).to(at::kFloat);
        for (Tensor& part : state) {
          std::vector<int64_t> shape(part.dim(), 1);
          shape[0] = B;
          part = part * continues.view(shape);
        }
      }
    }
    const auto [h, C, n, m] = ops::mlstm(
        p.q, p.k, p.v, p.i, p.f, {.state = ops::MlstmState{state[0], state[1], state[2]}, .document = document});
    return h + context.to_right({C, n, m}).to(h.scalar_type());
  }

  /// LayerNorm of each head of h, times o, [B, T, H V].
  Tensor gated_output(const Tensor& h_BTHV, const Projected& p, const MlstmWeights& weights) const {
    const Tensor normalised = nn::layer_norm(h_BTHV, std::nullopt, config_.norm_eps).flatten(2) * weights.norm;
    return normalised * at::sigmoid(p.output);
  }

  ModelConfig config_;
  int64_t H_, K_, V_;
  MlstmWeights own_;
};

}  // namespace

void check_mlstm_sizes(const ModelConfig& config) {
  if (config.hidden_size % (2 * config.mlstm_heads) != 0) {
    fail(ExitCode::kUsage,
         "model: mLSTM needs \"hidden_size\" to be a multiple of twice \"mlstm_heads\" (default: "
         "\"num_attention_heads\"), but {} is not a multiple of {}",
         config.hidden_size, 2 * config.mlstm_heads);
  }
}

std::unique_ptr<Mixer> make_mlstm(const ModelConfig& config, at::Device device) {
  return std::make_unique<MlstmMixer>(config, device);
}

}  // namespace tamis::models
