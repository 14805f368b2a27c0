// A Multiscreen layer, "Screening Is Enough", Eq. (15)-(18): gated screening of all heads,
//
//   sum_h exp(s_O) (screening(x W_Q, x W_K, x W_V) * tanh(SiLU(x W_G))) W_O

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/distributed/context_group.h"
#include "tamis/models/mixers/mipe_wrap.h"
#include "tamis/models/mixers/mixers.h"
#include "tamis/models/rotary_options.h"
#include "tamis/nn/initialise.h"
#include "tamis/nn/recompute.h"
#include "tamis/nn/rotary.h"
#include "tamis/ops/linear.h"
#include "tamis/ops/scratch.h"
#include "tamis/ops/screening/acceptance.h"
#include "tamis/ops/screening/screening_blocked_state.h"
#include "tamis/ops/screening/screening_layer.h"
#include "tamis/ops/screening/screening_state.h"
#include "tamis/ops/window.h"

namespace tamis::models {
namespace {

using at::Tensor;

/// What a layer keeps of a sequence: ops::ScreeningState on the CPU, ops::ScreeningBlockedState on other devices and
/// for other shapes of Trim and Softmask.
template <typename State>
struct ScreeningMixerState final : MixerState {
  ScreeningMixerState(State state, std::optional<double> expand_beyond)
      : state(std::move(state)), expand_beyond(expand_beyond) {}
  int64_t bytes() const override { return state.bytes(); }
  int64_t bytes_after(int64_t tokens) const override { return state.bytes_after(tokens); }
  void reserve(int64_t tokens) override { state.reserve(tokens); }
  void begin(int64_t tokens) override { state.reserve(tokens); }
  void end_token() override {
    if constexpr (std::is_same_v<State, ops::ScreeningState>) state.advance();  // only it takes tokens by head
  }
  std::unique_ptr<MixerState> fork() const override {
    return std::make_unique<ScreeningMixerState>(state.fork(), expand_beyond);
  }
  void save(std::ostream& out) const override { state.save(out); }
  void load(std::istream& in, int64_t position) override {
    state.load(in);
    if (state.position() == position) return;
    fail(ExitCode::kInput, "decoding state: a screening layer has seen {} tokens, not {}; the bytes are damaged",
         state.position(), position);
  }

  State state;
  std::optional<double> expand_beyond;  // SWE
};

using KernelState = ScreeningMixerState<ops::ScreeningState>;
using BlockedState = ScreeningMixerState<ops::ScreeningBlockedState>;

class ScreeningMixer final : public Mixer {
 public:
  ScreeningMixer(const ModelConfig& config, at::Device device)
      : config_(config), layout_{config.num_attention_heads, config.key_dim, config.value_dim, config.gate} {
    const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
    const int64_t H = config.num_attention_heads, width = config.value_width();
    projection_ = at::empty({2 * config.key_width() + (config.gate ? 2 : 1) * width, config.hidden_size}, options);
    output_ = at::empty({config.hidden_size, width}, options);
    s_w_ = at::empty({H}, options);
    s_r_ = at::empty({H}, options);
    if (config.output_scale) s_O_ = at::empty({H}, options);
    if (config.fixed_r) s_r_.fill_(ops::acceptance_scalar(*config.fixed_r));
  }

  std::vector<LayerParameter> parameters() const override {
    std::vector<LayerParameter> result = {{"qkvg", projection_, {}}, {"o_proj.weight", output_}, {"s_w", s_w_}};
    const std::vector<int64_t> rows = projected_rows();
    const char* const names[] = {"q_proj.weight", "k_proj.weight", "v_proj.weight", "g_proj.weight"};
    for (size_t i = 0; i < rows.size(); ++i) result[0].parts.push_back({names[i], rows[i]});
    if (!config_.fixed_r) result.push_back({"s_r", s_r_});
    if (s_O_.defined()) result.push_back({"s_O", s_O_});
    return result;
  }

  std::vector<Tensor> buffers() const override { return config_.fixed_r ? std::vector{s_r_} : std::vector<Tensor>(); }

  /// Appendix D: deviations by the width of each projection's output.
  void initialise(Initialiser& initialiser) const override {
    const double key = 0.1 / std::sqrt(static_cast<double>(config_.key_dim));
    const double value = 0.1 / std::sqrt(static_cast<double>(config_.value_dim));
    const std::vector<Tensor> parts = projection_.split_with_sizes(projected_rows());
    initialiser.unit(parts[0], key);
    initialiser.unit(parts[1], key);
    initialiser.unit(parts[2], value);
    if (config_.gate) initialiser.normal(parts[3], 0.1);
    initialiser.normal(output_, 0.1 / std::sqrt(static_cast<double>(config_.hidden_size)));
    s_w_.copy_(initial_s_w());
    if (!config_.fixed_r) s_r_.fill_(0);
    const auto all_heads = static_cast<double>(config_.num_hidden_layers * layout_.heads);
    if (s_O_.defined()) s_O_.fill_(-std::log(all_heads) / 2);
  }

  /// Initial widths accept 2% of random keys. Trained Multiscreens accepted 24 to 34% of those in their windows,
  /// which had become a quarter shorter: as many as 20% of the initial windows (docs/runs.md).
  void set_as_trained() const override {
    if (config_.fixed_r) return;
    constexpr double kAccepted = 0.2;
    const at::NoGradGuard no_grad;
    s_r_.fill_(ops::acceptance_scalar(ops::acceptance_for(kAccepted, layout_.key_dim)));
  }

  std::vector<Tensor> weights(at::ScalarType dtype) const override {
    Tensor output = output_;
    if (s_O_.defined()) {
      // exp(s_O) costs D H V products in the weights; in the activations it would cost B T H V and another pass.
      const Tensor by_head = output_.unflatten(1, {layout_.heads, layout_.value_dim});
      output = (by_head * s_O_.exp().unsqueeze(-1)).flatten(1);
    }
    return {projection_.to(dtype), output.to(dtype), s_w_, s_r_};
  }

  Tensor forward(const Tensor& x_BTD, const MixerCall& call) const override {
    const ops::ScreeningWeights weights = named(call.weights);
    const ops::ScreeningOptions options = this->options(call);
    if (!rotates_itself() && !call.observe && !call.context) {
      return ops::screening_layer(x_BTD, weights, layout_, options,
                                  call.recompute ? ops::Keep::kInput : ops::Keep::kInputAndProjections);
    }
    // Captures by value: recomputation runs after this function has returned.
    const auto in_parts = [*this, options, observe = call.observe,
                           context = call.context](const std::vector<Tensor>& in) {
      const ops::ScreeningWeights own = named({in.begin() + 1, in.end()});
      const int64_t start = context ? context->rank() * in[0].size(1) : 0;
      const ops::ScreeningProjections p = project(in[0], own, options.expand_beyond, start);
      const Tensor u_BTHV =
          context ? screened_across(*context, p, own, options) : ops::screening(p, own.s_w, own.s_r, options);
      if (observe) show(observe, p, u_BTHV);
      return ops::linear(u_BTHV.flatten(2), own.output);
    };
    const std::vector<Tensor> inputs = {x_BTD, weights.projection, weights.output, weights.s_w, weights.s_r};
    return call.recompute ? nn::recompute(in_parts, inputs) : in_parts(inputs);
  }

  bool recomputes() const override { return true; }

  HeadMatrices head_matrices(const std::vector<Tensor>& weights) const override {
    const ops::ScreeningWeights own = named(weights);
    return {layout_.heads, rows_by_head(own.projection.split_with_sizes(projected_rows()), layout_.heads), own.output};
  }

  std::unique_ptr<MixerState> new_state(std::optional<double> expand_beyond) const override {
    const at::NoGradGuard no_grad;
    const ops::ScreeningHeadOptions own = options({.expand_beyond = expand_beyond});
    const Tensor s_w = s_w_.detach(), s_r = s_r_.detach();
    const int64_t K = layout_.key_dim, V = layout_.value_dim;
    if (has_kernel_state()) {
      return std::make_unique<KernelState>(ops::ScreeningState(s_w, s_r, K, V, own), expand_beyond);
    }
    return std::make_unique<BlockedState>(ops::ScreeningBlockedState(s_w, s_r, K, V, own, s_w.device()), expand_beyond);
  }

  Tensor decode(const Tensor& projected_BCHR, const MixerCall&, std::span<MixerState* const> states) const override {
    return has_kernel_state() ? decode_with<KernelState>(projected_BCHR, states)
                              : decode_with<BlockedState>(projected_BCHR, states);
  }

  std::optional<HeadStep> head_step(const MixerCall&) const override {
    if (rotates_itself() || !has_kernel_state()) return std::nullopt;
    return [K = layout_.key_dim, V = layout_.value_dim, gated = layout_.gate](int64_t head, MixerState& state,
                                                                              float* projected, float* out) {
      float *q = projected, *k = q + K, *v = k + K;
      float* const scratch = ops::thread_memory<float>().take(ops::ScreeningState::head_scratch(K, V));
      static_cast<KernelState&>(state).state.step_head(head, {q, k, v, gated ? v + V : nullptr, out}, scratch);
    };
  }

  double step_cost(int64_t head, const MixerState& state) const override {
    constexpr double kStep = 250, kKey = 0.5;
    if (!has_kernel_state()) return 0;
    const auto& own = static_cast<const KernelState&>(state).state;
    return kStep + kKey * static_cast<double>(own.visible_keys(head));
  }

  MixerFlops flops(int64_t length, std::optional<double> expand_beyond) const override {
    MixerFlops flops;
    for (const double window : windows()) {
      const double keys = ops::mean_visible_keys(ops::expanded_window(window, expand_beyond), length);
      flops.similarities += 2 * keys * static_cast<double>(layout_.key_dim);
      flops.values += 2 * keys * static_cast<double>(layout_.value_dim);
    }
    return flops;
  }

  ContextTraffic context_traffic(int64_t tokens, int64_t rank, int64_t size, at::ScalarType dtype) const override {
    const auto row = static_cast<int64_t>((layout_.key_dim + layout_.value_dim) * c10::elementSize(dtype));
    const std::vector<int64_t> halos = this->halos(size * tokens, std::nullopt);
    ContextTraffic traffic = models::context_traffic(halos, row, tokens, rank, size);
    const auto near = std::ranges::count_if(halos, [&](int64_t halo) { return halo <= tokens; });
    if (near > 0 && near < layout_.heads) traffic.forward_messages = traffic.backward_messages = 2;  // screened_across
    return traffic;
  }

  /// Trim times Softmask, which multiplies the value; without TanhNorm and gate.
  ValuePath value_path(const Tensor& x_1TD, const MixerCall& call) const override {
    const ops::ScreeningWeights weights = named(call.weights);
    const ops::ScreeningProjections p = project(x_1TD, weights, call.expand_beyond);
    ops::ScreeningOptions plain = options(call);
    plain.tanh_norm = false;
    return {p.v_BTHV, [p, plain, weights](const Tensor& v) {
              return ops::screening(p.q_BTHK, p.k_BTHK, v, weights.s_w, weights.s_r, plain);
            }};
  }

  RelevanceMap relevance(const Tensor& x_1TD, const MixerCall& call) const override {
    const ops::ScreeningWeights weights = named(call.weights);
    const ops::ScreeningProjections p = project(x_1TD, weights, call.expand_beyond);
    const auto seen = ops::reference::screening_relevance(p.q_BTHK, p.k_BTHK, weights.s_w, weights.s_r, options(call));
    RelevanceMap map;
    map.relevance = (seen.trim * seen.softmask).squeeze(0);
    if (options(call).has_paper_shapes()) {  // of others the page shows the relevance alone
      map.similarity = seen.similarity.squeeze(0);
      map.trim = seen.trim.squeeze(0);
      map.softmask = seen.softmask.squeeze(0);
    }
    for (const double window : windows()) map.window.push_back(ops::expanded_window(window, call.expand_beyond));
    map.accept = acceptance_widths();
    return map;
  }

  std::vector<double> windows() const override {
    return of_heads(s_w_.is_meta() ? initial_s_w() : s_w_, ops::window_tokens<double>);
  }
  std::vector<double> acceptance_widths() const override { return of_heads(s_r_, ops::acceptance_width); }
  bool expands_windows() const override { return true; }

 private:
  /// Rows of W_Q, W_K, W_V and, unless ablated, W_G in the one projection.
  std::vector<int64_t> projected_rows() const {
    std::vector<int64_t> rows = {config_.key_width(), config_.key_width(), config_.value_width()};
    if (config_.gate) rows.push_back(config_.value_width());
    return rows;
  }

  Tensor initial_s_w() const { return at::linspace(0, std::log(config_.mipe_threshold), layout_.heads); }

  static ops::ScreeningWeights named(const std::vector<Tensor>& weights) {
    return {.projection = weights[0], .output = weights[1], .s_w = weights[2], .s_r = weights[3]};
  }

  ops::ScreeningOptions options(const MixerCall& call) const {
    ops::ScreeningOptions result;
    result.mipe_threshold = config_.mipe_threshold;
    result.expand_beyond = call.expand_beyond;
    result.document = call.document;
    result.tanh_norm = config_.tanh_norm;
    result.trim_power = config_.trim_power;
    result.softmask = config_.softmask;
    // The mixer applies rotary embedding itself, before screening scales to unit length, which does not change it.
    result.position = config_.screening_position == "rope" ? "none" : config_.screening_position;
    return result;
  }

  bool has_kernel_state() const { return s_w_.is_cpu() && config_.has_paper_shapes(); }

  /// Queries and keys are rotated here, before the operator.
  bool rotates_itself() const { return config_.screening_position == "rope" || config_.mipe_wrap_boundary; }

  /// Rows at the positions first, first + 1, ...
  Tensor rotated(const Tensor& x_BTHK, int64_t first, const Tensor& s_w, std::optional<double> expand_beyond) const {
    if (config_.screening_position == "rope") return nn::rotated(x_BTHK, first, rotary_options(config_));
    if (!config_.mipe_wrap_boundary) return x_BTHK;
    return mipe_wrapped(x_BTHK, s_w, first, {*config_.mipe_wrap_boundary, config_.mipe_threshold, expand_beyond});
  }

  template <typename State>
  Tensor decode_with(const Tensor& projected_BCHR, std::span<MixerState* const> states) const {
    std::vector<int64_t> widths = {layout_.key_dim, layout_.key_dim, layout_.value_dim};
    if (layout_.gate) widths.push_back(layout_.value_dim);
    std::vector<decltype(State::state)*> own;
    for (MixerState* state : states) own.push_back(&static_cast<State*>(state)->state);
    const std::vector<Tensor> parts = projected_BCHR.split_with_sizes(widths, -1);
    const Tensor q = rotated_rows<State>(parts[0], states), k = rotated_rows<State>(parts[1], states);
    const auto gate = layout_.gate ? std::optional(parts[3]) : std::nullopt;
    return decltype(State::state)::step(own, q, k, parts[2], gate);
  }

  /// Row b at the positions that follow states[b].
  template <typename State>
  Tensor rotated_rows(const Tensor& x_BCHK, std::span<MixerState* const> states) const {
    if (!rotates_itself()) return x_BCHK;
    std::vector<Tensor> rows;
    for (size_t b = 0; b < states.size(); ++b) {
      const Tensor row = x_BCHK.narrow(0, static_cast<int64_t>(b), 1);
      const auto& own = static_cast<const State&>(*states[b]);
      rows.push_back(rotated(row, own.state.position(), s_w_.detach(), own.expand_beyond));
    }
    return at::cat(rows);
  }

  /// Of the tokens at the positions start, start + 1, ...
  ops::ScreeningProjections project(const Tensor& x_BTD, const ops::ScreeningWeights& weights,
                                    std::optional<double> expand_beyond, int64_t start = 0) const {
    ops::ScreeningProjections p = ops::split_projections(ops::linear(x_BTD, weights.projection), layout_);
    p.q_BTHK = rotated(p.q_BTHK, start, weights.s_w, expand_beyond);
    p.k_BTHK = rotated(p.k_BTHK, start, weights.s_w, expand_beyond);
    return p;
  }

  /// Rows before a token that each head sees in a sequence of `length` tokens: ceil(w) - 1.
  std::vector<int64_t> halos(int64_t length, std::optional<double> expand_beyond) const {
    std::vector<int64_t> result;
    for (const double window : windows()) {
      result.push_back(ops::visible_span(ops::expanded_window(window, expand_beyond), length) - 1);
    }
    return result;
  }

  /// Screening of the own tokens' queries among the keys of all processes: of each head only those in its window. The
  /// heads whose windows end in the process before are computed apart from the others, so that they need no memory for
  /// keys that they do not see.
  Tensor screened_across(distributed::ContextGroup& context, const ops::ScreeningProjections& p,
                         const ops::ScreeningWeights& weights, const ops::ScreeningOptions& options) const {
    const int64_t T = p.q_BTHK.size(1), K = layout_.key_dim, V = layout_.value_dim, all = context.size() * T;
    std::vector<int64_t> near, far, near_halos, far_halos;
    const std::vector<int64_t> halos = this->halos(all, options.expand_beyond);
    for (int64_t h = 0; h < layout_.heads; ++h) {
      (halos[h] <= T ? near : far).push_back(h);
      (halos[h] <= T ? near_halos : far_halos).push_back(halos[h]);
    }
    const Tensor kv = at::cat({p.k_BTHK, p.v_BTHV}, -1);
    const auto of_heads = [&](const std::vector<int64_t>& heads, const std::vector<int64_t>& halos) {
      const bool every = static_cast<int64_t>(heads.size()) == layout_.heads;
      const Tensor index = at::tensor(heads, at::TensorOptions(kv.device()).dtype(at::kLong));
      const auto select = [&](const Tensor& x, int64_t dim) { return every ? x : x.index_select(dim, index); };
      const Tensor seen = context.with_left(select(kv, 2), halos);
      ops::ScreeningProjections own = {
          .q_BTHK = select(p.q_BTHK, 2), .k_BTHK = seen.narrow(-1, 0, K), .v_BTHV = seen.narrow(-1, K, V)};
      if (p.gate_BTHV) own.gate_BTHV = select(*p.gate_BTHV, 2);
      ops::ScreeningOptions of_part = options;
      const int64_t rows = seen.size(1);
      if (options.document) of_part.document = options.document->narrow(1, (context.rank() + 1) * T - rows, rows);
      return ops::screening(own, select(weights.s_w, 0), select(weights.s_r, 0), of_part);
    };
    if (far.empty()) return of_heads(near, near_halos);
    if (near.empty()) return of_heads(far, far_halos);
    const Tensor u_near = of_heads(near, near_halos), u_far = of_heads(far, far_halos);
    std::vector<int64_t> place(layout_.heads);  // of each head in the two parts together
    for (size_t i = 0; i < near.size(); ++i) place[near[i]] = static_cast<int64_t>(i);
    for (size_t i = 0; i < far.size(); ++i) place[far[i]] = static_cast<int64_t>(near.size() + i);
    return at::cat({u_near, u_far}, 2)
        .index_select(2, at::tensor(place, at::TensorOptions(kv.device()).dtype(at::kLong)));
  }

  static void show(const Observer& observe, const ops::ScreeningProjections& p, const Tensor& u_BTHV) {
    observe("q", p.q_BTHK);
    observe("k", p.k_BTHK);
    observe("v", p.v_BTHV);
    if (p.gate_BTHV) observe("gate", *p.gate_BTHV);
    observe("screening", u_BTHV);
  }

  template <typename Function>
  static std::vector<double> of_heads(const Tensor& scalars, const Function& function) {
    const Tensor values = scalars.detach().to(at::kCPU, at::kDouble).contiguous();
    std::vector<double> result;
    for (int64_t h = 0; h < values.numel(); ++h) result.push_back(function(values.const_data_ptr<double>()[h]));
    return result;
  }

  ModelConfig config_;
  ops::ProjectionLayout layout_;
  Tensor projection_;       // [2 H K + 2 H V, D]: W_Q, W_K, W_V, W_G, each blocked by head
  Tensor output_;           // [D, H V]
  Tensor s_w_, s_r_, s_O_;  // [H]; s_r is not trained where r is fixed, s_O may be absent
};

}  // namespace

void check_screening_sizes(const ModelConfig& config) {
  if (config.screening_position == "rope" && config.key_dim % 2 != 0) {
    fail(ExitCode::kUsage, "model: rotary embedding needs an even \"key_dim\", but it is {}", config.key_dim);
  }
  if (config.mipe_wrap_boundary && config.screening_position != "mipe") {
    fail(ExitCode::kUsage, "model: \"mipe_wrap_boundary\" needs screening with the position \"mipe\", but it is \"{}\"",
         config.screening_position);
  }
}

std::unique_ptr<Mixer> make_screening(const ModelConfig& config, at::Device device) {
  return std::make_unique<ScreeningMixer>(config, device);
}

}  // namespace tamis::models
