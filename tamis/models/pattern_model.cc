#include "tamis/models/pattern_model.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tamis/base/error.h"
#include "tamis/models/token_ids.h"
#include "tamis/nn/norm.h"
#include "tamis/nn/recompute.h"
#include "tamis/nn/rows.h"
#include "tamis/nn/trace_scope.h"

namespace tamis::models {

using at::Tensor;

namespace {

/// x, whose backward pass first calls guard.before() for the layer which gave x.
struct GuardBackward : torch::autograd::Function<GuardBackward> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, LayerGuard* guard, int64_t layer) {
    ctx->saved_data["guard"] = reinterpret_cast<int64_t>(guard);
    ctx->saved_data["layer"] = layer;
    return x.view(x.sizes());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    reinterpret_cast<LayerGuard*>(ctx->saved_data["guard"].toInt())->before(ctx->saved_data["layer"].toInt());
    return {grads[0], Tensor(), Tensor()};
  }
};

}  // namespace

PatternModel::PatternModel(const ModelConfig& config, const Start& start) : config_(config), json_(to_json(config)) {
  const at::NoGradGuard no_grad;
  const auto options = at::TensorOptions().dtype(at::kFloat).device(start.device);
  const int64_t N = config.vocab_size, D = config.hidden_size;
  embed_ = at::empty({N, D}, options);
  if (config.has_unit_embedding()) {
    s_E_ = at::empty({}, options);
    s_F_ = at::empty({}, options);
  } else if (!config.tie_word_embeddings) {
    head_ = at::empty({N, D}, options);
  }
  if (config.has_norms() && config.final_norm_weight) norm_ = at::empty({D}, options);
  if (config.ssmax == "position") position_scale_ = at::empty({config.max_position_embeddings}, options);
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) layers_.emplace_back(config, l, start.device);
  if (start.seed) initialise(start);
  for (const Parameter& parameter : parameters()) parameter.tensor.requires_grad_(true);
}

void PatternModel::initialise(const Start& start) {
  Initialiser initialiser(*start.seed, config_, start.unit_deviation);
  if (config_.has_unit_embedding()) {  // "Screening Is Enough", appendix D
    const auto hidden = static_cast<double>(config_.hidden_size);
    initialiser.unit(embed_, 0.1 / std::sqrt(hidden));
    s_E_.fill_(0);
    s_F_.fill_(std::log(hidden) / 2);  // ln sqrt(D)
  } else {
    initialiser.inner(embed_);
    if (head_.defined()) initialiser.inner(head_);
  }
  if (norm_.defined()) norm_.fill_(1);
  if (position_scale_.defined()) position_scale_.fill_(1);
  for (const Layer& layer : layers_) layer.initialise(initialiser);
}

std::vector<LayerParameter> PatternModel::all_parameters() const {
  std::vector<LayerParameter> result = {{"embed.weight", embed_}};
  const auto add = [&](const char* name, const Tensor& tensor) {
    if (tensor.defined()) result.push_back({name, tensor});
  };
  add("s_E", s_E_);
  add("s_F", s_F_);
  for (size_t l = 0; l < layers_.size(); ++l) {
    const std::string prefix = "layers." + std::to_string(l) + ".";
    for (LayerParameter& own : layers_[l].parameters()) {
      own.name.insert(0, prefix);
      for (CheckpointPart& part : own.parts) part.name.insert(0, prefix);
      result.push_back(std::move(own));
    }
  }
  add("position_scale", position_scale_);
  add("norm.weight", norm_);
  add("head.weight", head_);
  return result;
}

std::vector<Parameter> PatternModel::parameters() const {
  std::vector<Parameter> result;
  for (const LayerParameter& each : all_parameters()) result.push_back({each.name, each.tensor});
  return result;
}

std::vector<Tensor> PatternModel::buffers() const {
  std::vector<Tensor> result;
  for (const Layer& layer : layers_) {
    for (const Tensor& own : layer.mixer().buffers()) result.push_back(own);
  }
  return result;
}

std::vector<nn::NamedTensor> PatternModel::checkpoint_tensors(std::span<const Tensor> like_parameters) const {
  const std::vector<LayerParameter> own = all_parameters();
  TORCH_INTERNAL_ASSERT(like_parameters.size() == own.size());
  std::vector<nn::NamedTensor> result;
  for (size_t p = 0; p < own.size(); ++p) {
    if (own[p].parts.empty()) result.push_back({own[p].name, like_parameters[p]});
    int64_t row = 0;
    for (const CheckpointPart& part : own[p].parts) {
      result.push_back({part.name, like_parameters[p].narrow(0, row, part.rows)});
      row += part.rows;
    }
  }
  return result;
}

std::optional<double> PatternModel::expand_beyond(bool expand_windows) const {
  return expand_windows ? std::optional(static_cast<double>(config_.max_position_embeddings)) : std::nullopt;
}

LayerSettings PatternModel::settings(const ForwardOptions& options) const {
  const auto expands = [](const Layer& layer) { return layer.mixer().expands_windows(); };
  if (options.expand_windows && std::ranges::none_of(layers_, expands)) {
    fail(ExitCode::kUsage, "--expand-windows: this {} has no screening layers, whose windows could be expanded",
         config_.model_type);
  }
  return {.window = options.window,
          .expand_beyond = expand_beyond(options.expand_windows),
          .recompute = false,
          .dropout = options.dropout,
          .document_BT = options.document_BT,
          .observe = {},
          .context = options.context};
}

Tensor PatternModel::embedded(const Tensor& tokens_BT) const {
  check_token_ids(tokens_BT, config_.vocab_size);
  return looked_up(tokens_BT);
}

Tensor PatternModel::looked_up(const Tensor& tokens_BT) const {
  // The host reads a copy of its own only after it has arrived.
  const Tensor rows = at::embedding(embed_, tokens_BT.to(embed_.device(), /*non_blocking=*/tokens_BT.is_cpu()));
  return config_.has_unit_embedding() ? nn::exp_scaled(nn::unit_rows(rows), s_E_) : rows;
}

Tensor PatternModel::finished(const Tensor& x_BTD) const {
  Tensor x = x_BTD;
  if (config_.has_norms()) {
    x = nn::rms_norm(x, norm_.defined() ? std::optional(norm_) : std::nullopt, config_.norm_eps);
  }
  return config_.has_unit_embedding() ? nn::exp_scaled(x, s_F_) : x;
}

Tensor PatternModel::head_weight() const {
  if (config_.has_unit_embedding()) return nn::unit_rows(embed_);
  return head_.defined() ? head_ : embed_;
}

Tensor PatternModel::hidden(const Tensor& tokens_BT, const ForwardOptions& options) const {
  const LayerSettings base = settings(options);
  Tensor x = embedded(tokens_BT);
  const bool may_recompute = !options.observe && at::GradMode::is_enabled();
  const auto recomputed = static_cast<size_t>(std::lround(options.recompute * static_cast<double>(layers_.size())));
  if (options.dropout) x = nn::dropout(x, *options.dropout);
  if (options.observe) options.observe("embedding", x);
  for (size_t l = 0; l < layers_.size(); ++l) {
    const Layer& layer = layers_[l];
    if (options.guard) options.guard->before(static_cast<int64_t>(l));
    const LayerWeights weights = layer.weights(options.compute_dtype, position_scale_);
    const std::string name = "layers." + std::to_string(l);
    const nn::TraceScope scope(name);
    LayerSettings own = base;
    own.recompute = may_recompute && l < recomputed;
    if (options.observe) {
      own.observe = [&](const std::string& part, const Tensor& y) { options.observe(name + "." + part, y); };
    }
    if (own.recompute && !layer.recomputes()) {
      // Captures by value: recomputation runs after this function has returned.
      const auto again = [&layer, weights, base, name](const std::vector<Tensor>& in) {
        const nn::TraceScope of_recomputation(name);
        return layer.forward(in[0], weights.with({in.begin() + 1, in.end()}), base);
      };
      std::vector<Tensor> inputs = weights.list();
      inputs.insert(inputs.begin(), x);
      x = nn::recompute(again, inputs);
    } else {
      x = layer.forward(x, weights, own);
    }
    if (options.guard) {
      x = GuardBackward::apply(x, options.guard, static_cast<int64_t>(l));
      options.guard->after(static_cast<int64_t>(l));
    }
    if (options.observe) options.observe(name, x);
  }
  x = finished(x);
  if (options.observe) options.observe("final", x);
  return x;
}

// ---- inspection

void PatternModel::set_as_trained() const {
  for (const Layer& layer : layers_) layer.mixer().set_as_trained();
}

Flops PatternModel::flops_per_token(int64_t length, bool expand_windows) const {
  Flops flops;
  for (const Parameter& parameter : parameters()) {
    const bool only_looked_up = parameter.tensor.is_same(embed_) && head_.defined();
    if (parameter.tensor.dim() > 1 && !only_looked_up) {
      flops.weights += 2.0 * static_cast<double>(parameter.tensor.numel());
    }
  }
  for (const Layer& layer : layers_) {
    const MixerFlops own = layer.mixer().flops(length, expand_beyond(expand_windows));
    flops.similarities += own.similarities;
    flops.values += own.values;
  }
  return flops;
}

std::vector<ContextTraffic> PatternModel::context_traffic(int64_t tokens, int64_t rank, int64_t size,
                                                          at::ScalarType dtype) const {
  std::vector<ContextTraffic> result;
  for (const Layer& layer : layers_) result.push_back(layer.mixer().context_traffic(tokens, rank, size, dtype));
  return result;
}

std::vector<Model::ScreeningHead> PatternModel::screening_heads() const {
  std::vector<ScreeningHead> result;
  for (size_t l = 0; l < layers_.size(); ++l) {
    const std::vector<double> accepts = layers_[l].mixer().acceptance_widths();
    const std::vector<double> windows = accepts.empty() ? accepts : layers_[l].mixer().windows();
    for (size_t h = 0; h < accepts.size(); ++h) {
      result.push_back({static_cast<int64_t>(l), static_cast<int64_t>(h), windows[h], accepts[h]});
    }
  }
  return result;
}

int64_t PatternModel::relevance_maps() const {
  int64_t maps = 0;
  for (const Layer& layer : layers_) maps += static_cast<int64_t>(layer.mixer().windows().size());
  return maps;
}

template <typename Visit>
void PatternModel::inspect_layers(const Tensor& tokens_1T, const ForwardOptions& options, const Visit& visit) const {
  const at::NoGradGuard no_grad;
  const LayerSettings own = settings(options);
  Tensor x = embedded(tokens_1T);
  for (const Layer& layer : layers_) {
    const LayerWeights weights = layer.weights(options.compute_dtype, position_scale_);
    visit(layer, layer.mixer_input(x, weights), layer.call(weights, own));
    x = layer.forward(x, weights, own);
  }
}

std::vector<RelevanceMap> PatternModel::relevance(const Tensor& tokens_1T, const ForwardOptions& options) const {
  std::vector<RelevanceMap> maps;
  inspect_layers(tokens_1T, options, [&](const Layer& layer, const Tensor& input, const MixerCall& call) {
    RelevanceMap map = layer.mixer().relevance(input, call);
    map.layer = std::ssize(maps);
    maps.push_back(std::move(map));
  });
  return maps;
}

Tensor PatternModel::attention_mass(const Tensor& tokens_1T, int64_t first, int64_t last,
                                    const ForwardOptions& options) const {
  std::vector<Tensor> masses;
  inspect_layers(tokens_1T, options, [&](const Layer& layer, const Tensor& input, const MixerCall& call) {
    masses.push_back(models::attention_mass(layer.mixer().value_path(input, call), first, last));
  });
  return at::stack(masses).cpu();
}

}  // namespace tamis::models
