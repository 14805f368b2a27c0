#include "tamis/models/mixers/attention_mixer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tamis/base/error.h"
#include "tamis/distributed/context_group.h"
#include "tamis/models/mixers/ring_attention.h"
#include "tamis/models/rotary_options.h"
#include "tamis/nn/norm.h"
#include "tamis/ops/attention.h"
#include "tamis/ops/linear.h"
#include "tamis/ops/window.h"

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

AttentionMixer::AttentionMixer(const ModelConfig& config, const AttentionKind& kind, Attend attend,
                               AttendToken attend_token, at::Device device)
    : config_(config), kind_(kind), attend_(std::move(attend)), attend_token_(std::move(attend_token)) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  const int64_t D = config.hidden_size, H = config.num_attention_heads, d = config.head_dim();
  own_.qkv = at::empty({3 * H * d, D}, options);
  own_.out = at::empty({D, H * d}, options);
  if (config.qk_norm) {
    own_.q_norm = at::empty({d}, options);
    own_.k_norm = at::empty({d}, options);
  }
  if (kind.scalable && config.learns_scale()) own_.log_scale = at::empty({H}, options);
  if (kind.scalable && config.learns_bias()) own_.log_bias = at::empty({H}, options);
}

void AttentionMixer::initialise(Initialiser& initialiser) const {
  initialiser.inner(own_.qkv);
  initialiser.residual(own_.out);
  for (const Tensor& norm : {own_.q_norm, own_.k_norm}) {
    if (norm.defined()) norm.fill_(1);
  }
  if (own_.log_scale.defined()) own_.log_scale.fill_(config_.ssmax_scale.value_or(1));
  if (own_.log_bias.defined()) own_.log_bias.fill_(0);
}

AttentionMixer::Projected AttentionMixer::normalised(const Projected& raw, const AttentionWeights& weights) const {
  if (!config_.qk_norm) return raw;
  return {nn::rms_norm(raw.q, weights.q_norm, config_.norm_eps), nn::rms_norm(raw.k, weights.k_norm, config_.norm_eps),
          raw.v};
}

AttentionMixer::Projected AttentionMixer::project(const Tensor& x_BTD, const AttentionWeights& weights) const {
  const Tensor projected =
      ops::linear(x_BTD, weights.qkv).unflatten(-1, {3, config_.num_attention_heads, config_.head_dim()});
  return normalised({projected.select(2, 0), projected.select(2, 1), projected.select(2, 2)}, weights);
}

std::optional<nn::RotaryOptions> AttentionMixer::rotary() const {
  if (!kind_.rotary || config_.position != "rope") return std::nullopt;
  return rotary_options(config_);
}

void AttentionMixer::rotate(Projected& projected, int64_t position) const {
  const auto options = rotary();
  if (!options) return;
  projected.q = nn::rotated(projected.q, position, *options);
  projected.k = nn::rotated(projected.k, position, *options);
}

Tensor AttentionMixer::forward(const Tensor& x_BTD, const MixerCall& call) const {
  const AttentionWeights weights = named(own_, call.weights);
  Projected p = project(x_BTD, weights);
  if (call.context) return ops::linear(attend_across(p, weights, call).flatten(2), weights.out);
  rotate(p, 0);
  return ops::linear(attend_(p.q, p.k, p.v, {weights, call}).flatten(2), weights.out);
}

std::vector<int64_t> AttentionMixer::halos(std::optional<int64_t> window) const {
  if (!kind_.window) return std::vector<int64_t>(config_.num_attention_heads, distributed::kAllKeys);
  return std::vector<int64_t>(config_.num_attention_heads, window.value_or(*kind_.window) - (kind_.strict ? 0 : 1));
}

ContextTraffic AttentionMixer::context_traffic(int64_t tokens, int64_t rank, int64_t size, at::ScalarType dtype) const {
  const auto row = static_cast<int64_t>(2 * config_.head_dim() * c10::elementSize(dtype));
  if (!kind_.ring) return models::context_traffic(halos(std::nullopt), row, tokens, rank, size);
  const int64_t heads = config_.num_attention_heads, sent = ring_rows_sent(rank, size, tokens);
  // The keys of one process after the other; the backward pass receives them again and sends their gradients.
  return {.forward = sent * heads * row,
          .backward = (sent + rank * tokens) * heads * row,
          .forward_messages = size - 1,
          .backward_messages = 2 * (size - 1)};
}

Tensor AttentionMixer::attend_across(Projected p, const AttentionWeights& weights, const MixerCall& call) const {
  const int64_t T = p.q.size(1), start = call.context->rank() * T, d = config_.head_dim();
  rotate(p, start);
  if (kind_.ring) return attend_(p.q, p.k, p.v, {weights, call});
  const Tensor kv = call.context->with_left(at::cat({p.k, p.v}, -1), halos(call.window));
  const int64_t key_start = start + T - kv.size(1);
  MixerCall own = call;
  own.context = nullptr;  // all keys are here
  if (call.document) own.document = call.document->narrow(1, key_start, kv.size(1));
  return attend_(p.q, kv.narrow(-1, 0, d), kv.narrow(-1, d, d), {weights, own, key_start});
}

HeadMatrices AttentionMixer::head_matrices(const std::vector<Tensor>& weights) const {
  const AttentionWeights own = named(own_, weights);
  const int64_t H = config_.num_attention_heads;
  return {H, rows_by_head(own.qkv.split(H * config_.head_dim()), H), own.out};
}

std::unique_ptr<MixerState> AttentionMixer::new_state(std::optional<double> /*expand_beyond*/) const {
  const int64_t d = config_.head_dim();
  const auto options = rotary();
  return std::make_unique<AttentionState>(
      KeyValueCache(config_.num_attention_heads, d, d, kind_.reach(), at::kFloat, own_.qkv.device()),
      options ? std::optional(nn::Rotation(d, *options)) : std::nullopt);
}

Tensor AttentionMixer::decode(const Tensor& projected_BCHR, const MixerCall& call,
                              std::span<MixerState* const> states) const {
  const AttentionWeights weights = named(own_, call.weights);
  const auto parts = projected_BCHR.split(config_.head_dim(), -1);
  const Projected all = normalised({parts[0], parts[1], parts[2]}, weights);
  std::vector<Tensor> mixed;
  for (size_t b = 0; b < states.size(); ++b) {
    KeyValueCache& cache = static_cast<AttentionState*>(states[b])->cache;
    const auto row = [&](const Tensor& x) { return x.narrow(0, static_cast<int64_t>(b), 1); };
    Projected p = {row(all.q), row(all.k), row(all.v)};
    rotate(p, cache.position());
    const KeyValueCache::Seen seen = cache.append(p.k, p.v);
    mixed.push_back(attend_(p.q.to(seen.k.scalar_type()), seen.k, seen.v, {weights, call, seen.key_start}));
  }
  return at::cat(mixed).to(projected_BCHR.scalar_type());
}

std::optional<HeadStep> AttentionMixer::head_step(const MixerCall& call) const {
  if (!attend_token_) return std::nullopt;
  return [this, weights = named(own_, call.weights), d = config_.head_dim()](int64_t head, MixerState& state,
                                                                             float* projected, float* out) {
    const auto& own = static_cast<const AttentionState&>(state);
    float *q = projected, *k = q + d, *v = k + d;
    if (weights.q_norm.defined()) {
      nn::rms_norm_row(q, weights.q_norm.const_data_ptr<float>(), d, config_.norm_eps, q);
      nn::rms_norm_row(k, weights.k_norm.const_data_ptr<float>(), d, config_.norm_eps, k);
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
                  head, weights);
  };
}

MixerFlops AttentionMixer::flops(int64_t length, std::optional<double> /*expand_beyond*/) const {
  const double keys = ops::mean_visible_keys(windows().front(), length, kind_.strict);
  const double work = 2 * keys * static_cast<double>(config_.num_attention_heads * config_.head_dim());
  return {.similarities = work, .values = work};
}

ValuePath AttentionMixer::value_path(const Tensor& x_1TD, const MixerCall& call) const {
  const AttentionWeights weights = named(own_, call.weights);
  Projected p = project(x_1TD, weights);
  rotate(p, 0);
  return {p.v, [this, p, weights, &call](const Tensor& v) { return attend_(p.q, p.k, v, {weights, call}); }};
}

std::vector<double> AttentionMixer::windows() const {
  const double window = kind_.window ? static_cast<double>(*kind_.window) : std::numeric_limits<double>::infinity();
  return std::vector<double>(static_cast<size_t>(config_.num_attention_heads), window);
}

void check_attention_sizes(const ModelConfig& config) {
  if (config.hidden_size % config.num_attention_heads != 0) {
    fail(ExitCode::kUsage, "model: \"num_attention_heads\" must divide \"hidden_size\" {}, but is {}",
         config.hidden_size, config.num_attention_heads);
  }
}

void check_rotary_sizes(const ModelConfig& config) {
  check_attention_sizes(config);
  if (config.position == "rope" && config.head_dim() % 2 != 0) {
    fail(ExitCode::kUsage,
         "model: rotary embedding needs heads of even width, but \"hidden_size\" / \"num_attention_heads\" is {}; "
         "choose other sizes or position = \"none\"",
         config.head_dim());
  }
}

}  // namespace tamis::models
