#include "tamis/models/mixers/attention_mixer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tamis/base/error.h"
#include "tamis/nn/norm.h"
#include "tamis/ops/attention.h"
#include "tamis/ops/linear.h"

namespace tamis::models {
namespace {

using at::Tensor;

struct AttentionState final : MixerState {
  AttentionState(KeyValueCache cache, std::optional<nn::Rotation> rotation)
      : cache(std::move(cache)), rotation(std::move(rotation)) {}
  int64_t bytes() const override { return cache.bytes(); }
  int64_t bytes_after(int64_t tokens) const override { return cache.bytes_after(tokens); }
  void reserve(int64_t tokens) override { cache.reserve(tokens); }
  void begin(int64_t tokens) override {
    cache.begin(tokens);
    if (rotation && tokens == 1) rotation->set_position(cache.position());
  }
  void end_token() override { cache.end_token(); }
  std::unique_ptr<MixerState> fork() const override { return std::make_unique<AttentionState>(cache.fork(), rotation); }
  void save(std::ostream& out) const override { cache.save(out); }
  void load(std::istream& in, int64_t position) override { cache.load(in, position); }

  KeyValueCache cache;
  std::optional<nn::Rotation> rotation;  // of the next token
};

}  // namespace

AttentionMixer::AttentionMixer(const StackConfig& config, const AttentionKind& kind, Attend attend,
                               AttendToken attend_token, at::Device device)
    : config_(config), kind_(kind), attend_(std::move(attend)), attend_token_(std::move(attend_token)) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  const int64_t D = config.hidden_size, H = config.num_attention_heads, d = config.head_dim();
  qkv_ = at::empty({3 * H * d, D}, options);
  out_ = at::empty({D, H * d}, options);
  if (config.qk_norm) {
    q_norm_ = at::empty({d}, options);
    k_norm_ = at::empty({d}, options);
  }
  if (kind.scalable && config.learns_scale()) log_scale_ = at::empty({H}, options);
  if (kind.scalable && config.learns_bias()) log_bias_ = at::empty({H}, options);
}

std::vector<Parameter> AttentionMixer::parameters() const {
  std::vector<Parameter> result = {{"qkv_proj.weight", qkv_}, {"o_proj.weight", out_}};
  if (q_norm_.defined()) result.push_back({"q_norm.weight", q_norm_});
  if (k_norm_.defined()) result.push_back({"k_norm.weight", k_norm_});
  if (log_scale_.defined()) result.push_back({"log_scale", log_scale_});
  if (log_bias_.defined()) result.push_back({"log_bias", log_bias_});
  return result;
}

void AttentionMixer::initialise(Initialiser& initialiser) const {
  initialiser.inner(qkv_);
  initialiser.residual(out_);
  for (const Tensor& norm : {q_norm_, k_norm_}) {
    if (norm.defined()) norm.fill_(1);
  }
  if (log_scale_.defined()) log_scale_.fill_(config_.ssmax_scale.value_or(1));
  if (log_bias_.defined()) log_bias_.fill_(0);
}

AttentionMixer::Projected AttentionMixer::project(const Tensor& x_BTD, const MixerCall& call) const {
  const Tensor projected =
      ops::linear(x_BTD, call[0]).unflatten(-1, {3, config_.num_attention_heads, config_.head_dim()});
  Projected result = {projected.select(2, 0), projected.select(2, 1), projected.select(2, 2)};
  if (config_.qk_norm) {
    result.q = nn::rms_norm(result.q, call[2], config_.norm_eps);
    result.k = nn::rms_norm(result.k, call[3], config_.norm_eps);
  }
  return result;
}

std::optional<nn::RotaryOptions> AttentionMixer::rotary() const {
  if (!kind_.rotary || config_.position != "rope") return std::nullopt;
  return nn::RotaryOptions{.theta = config_.rope_theta, .factor = config_.rope_factor};
}

void AttentionMixer::rotate(Projected& projected, int64_t position) const {
  const auto options = rotary();
  if (!options) return;
  projected.q = nn::rotated(projected.q, position, *options);
  projected.k = nn::rotated(projected.k, position, *options);
}

Tensor AttentionMixer::put_out(const Tensor& mixed_BTHV, const MixerCall& call) const {
  return ops::linear(mixed_BTHV.flatten(2), call[1]);
}

Tensor AttentionMixer::forward(const Tensor& x_BTD, const MixerCall& call) const {
  Projected p = project(x_BTD, call);
  rotate(p, 0);
  return put_out(attend_(p.q, p.k, p.v, 0, call), call);
}

std::unique_ptr<MixerState> AttentionMixer::new_state() const {
  const int64_t d = config_.head_dim();
  const auto options = rotary();
  return std::make_unique<AttentionState>(
      KeyValueCache(config_.num_attention_heads, d, d, kind_.window, at::kFloat, qkv_.device()),
      options ? std::optional(nn::Rotation(d, *options)) : std::nullopt);
}

Tensor AttentionMixer::decode(const Tensor& x_BCD, const MixerCall& call, std::span<MixerState* const> states) const {
  const Projected all = project(x_BCD, call);
  std::vector<Tensor> mixed;
  for (size_t b = 0; b < states.size(); ++b) {
    KeyValueCache& cache = static_cast<AttentionState*>(states[b])->cache;
    const auto row = [&](const Tensor& x) { return x.narrow(0, static_cast<int64_t>(b), 1); };
    Projected p = {row(all.q), row(all.k), row(all.v)};
    rotate(p, cache.position());
    const KeyValueCache::Seen seen = cache.append(p.k, p.v);
    mixed.push_back(attend_(p.q.to(seen.k.scalar_type()), seen.k, seen.v, seen.key_start, call));
  }
  return put_out(at::cat(mixed).to(x_BCD.scalar_type()), call);
}

std::optional<TokenForm> AttentionMixer::token_form() const {
  if (!attend_token_) return std::nullopt;
  const int64_t H = config_.num_attention_heads, d = config_.head_dim();
  TokenForm form{.heads = {}, .head_out = d, .output = 1};
  for (int64_t h = 0; h < H; ++h) {
    const auto rows = [&](int64_t which) { return MatrixRows{0, (which * H + h) * d, (which * H + h + 1) * d}; };
    form.heads.push_back({rows(0), rows(1), rows(2)});
  }
  return form;
}

void AttentionMixer::step_head(int64_t head, const MixerCall& call, MixerState& state, float* projected,
                               float* out) const {
  const auto& own = static_cast<const AttentionState&>(state);
  const int64_t d = config_.head_dim();
  float *q = projected, *k = q + d, *v = k + d;
  if (config_.qk_norm) {
    nn::rms_norm_row(q, call[2].const_data_ptr<float>(), d, config_.norm_eps, q);
    nn::rms_norm_row(k, call[3].const_data_ptr<float>(), d, config_.norm_eps, k);
  }
  if (own.rotation) {
    own.rotation->rotate(q);
    own.rotation->rotate(k);
  }
  const KeyValueCache::Head cached = own.cache.head(head);
  std::copy_n(k, d, cached.k);
  std::copy_n(v, d, cached.v);
  attend_token_({.q = q,
                 .keys = cached.keys,
                 .values = cached.values,
                 .count = cached.before + (kind_.strict ? 0 : 1),
                 .key_dim = d,
                 .value_dim = d,
                 .scale = static_cast<float>(ops::score_scale(std::nullopt, d)),
                 .out = out},
                head, call);
}

MixerFlops AttentionMixer::flops(int64_t length) const {
  const auto T = static_cast<double>(length);
  const double span = kind_.window ? std::min(static_cast<double>(*kind_.window), T) : T;
  const double keys = (span * (span + 1) / 2 + (T - span) * span) / T;
  const double work = 2 * keys * static_cast<double>(config_.num_attention_heads * config_.head_dim());
  return {.similarities = work, .values = work};
}

ValuePath AttentionMixer::value_path(const Tensor& x_1TD, const MixerCall& call) const {
  Projected p = project(x_1TD, call);
  rotate(p, 0);
  return {p.v, [this, p, &call](const Tensor& v) { return attend_(p.q, p.k, v, 0, call); }};
}

std::vector<double> AttentionMixer::windows() const {
  const double window = kind_.window ? static_cast<double>(*kind_.window) : std::numeric_limits<double>::infinity();
  return std::vector<double>(static_cast<size_t>(config_.num_attention_heads), window);
}

void check_attention_sizes(const StackConfig& config) {
  if (config.hidden_size % config.num_attention_heads != 0) {
    fail(ExitCode::kUsage, "model: \"num_attention_heads\" must divide \"hidden_size\" {}, but is {}",
         config.hidden_size, config.num_attention_heads);
  }
}

void check_rotary_sizes(const StackConfig& config) {
  check_attention_sizes(config);
  if (config.position == "rope" && config.head_dim() % 2 != 0) {
    fail(ExitCode::kUsage,
         "model: rotary embedding needs heads of even width, but \"hidden_size\" / \"num_attention_heads\" is {}; "
         "choose other sizes or position = \"none\"",
         config.head_dim());
  }
}

}  // namespace tamis::models
