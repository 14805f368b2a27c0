#include "tamis/bench/check.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "tamis/base/error.h"
#include "tamis/bench/model_inputs.h"
#include "tamis/ops/screening/screening.h"
#include "tamis/ops/window.h"

namespace tamis::bench {
namespace {

using at::Tensor;

double largest(const Tensor& x) {
  return x.abs().max().item<double>();
}

using Weights = std::map<std::string, Tensor>;  // by name

Weights exact_parameters(const models::Model& model) {
  Weights result;
  for (const auto& [name, tensor] : model.parameters()) result[name] = tensor.to(at::kDouble);
  return result;
}

/// A definition of its own, because it checks nn::unit_rows.
Tensor unit_rows(const Tensor& x) {
  return x / x.norm(2, {-1}, /*keepdim=*/true);
}

Tensor embedded(const Weights& w, const Tensor& tokens_BT) {
  return unit_rows(w.at("embed.weight")).index({tokens_BT}) * w.at("s_E").exp();
}

}  // namespace

models::ModelConfig plain_config(const models::Model& model) {
  const nlohmann::json config = model.config();
  const bool multiscreen = config.value("model_type", "") == "multiscreen";
  if (!multiscreen || config.value("position", "mipe") != "mipe" || !config.value("tanh_norm", true) ||
      !config.value("gate", true) || config.contains("fixed_r") || config.contains("pattern") ||
      config.contains("norm") || config.contains("mlp") || config.contains("embedding") ||
      config.contains("output_scale") || config.contains("trim_power") || config.contains("softmask") ||
      config.contains("logit_soft_cap") || config.contains("mipe_wrap_boundary")) {
    fail(ExitCode::kUsage,
         "bench: expected a Multiscreen without variants (position, tanh_norm, gate, fixed_r, trim_power, softmask, "
         "other layers), got {}",
         multiscreen ? config.dump() : config.value("model_type", ""));
  }
  return models::read_model_config(config);
}

double check(const std::string& what, const std::vector<Named>& found, const std::vector<Named>& exact,
             double tolerance) {
  const at::NoGradGuard no_grad;
  double worst = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const Tensor expected = exact[i].tensor.to(at::kDouble);
    const double scale = std::max(largest(expected), 1e-30);
    const double error = largest(found[i].tensor.to(at::kDouble) - expected) / scale;
    if (!(error <= tolerance)) {
      fail(ExitCode::kRuntime,
           "bench: {}: {} differs from its definition by {:.2g} of its largest value; at most {:.2g} is allowed", what,
           found[i].name, error, tolerance);
    }
    worst = std::max(worst, error);
  }
  return worst;
}

double operator_tolerance(at::ScalarType dtype) {
  return dtype == at::kFloat ? 1e-3 : 0.05;
}

double model_tolerance(at::ScalarType dtype) {
  return dtype == at::kFloat ? 5e-3 : 0.25;
}

Tensor exact_hidden(const models::Model& model, const Tensor& tokens_BT, bool expand_windows) {
  const models::ModelConfig config = plain_config(model);
  const Weights w = exact_parameters(model);
  const int64_t H = config.num_attention_heads;
  const std::vector<int64_t> widths = {config.key_width(), config.key_width(), config.value_width(),
                                       config.value_width()};
  Tensor x_BTD = embedded(w, tokens_BT);
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const std::string layer = "layers." + std::to_string(l) + ".";
    const auto parts = at::linear(x_BTD, w.at(layer + "qkvg")).split_with_sizes(widths, -1);
    const auto by_head = [H](const Tensor& part) { return part.unflatten(-1, {H, -1}); };
    const Tensor s_w = w.at(layer + "s_w"), infinite = ops::window_tokens(s_w) > config.max_position_embeddings;
    const Tensor u_BTHV = ops::reference::screening(
        by_head(parts[0]), by_head(parts[1]), by_head(parts[2]),
        expand_windows ? at::where(infinite, window_scalars("infinite", H).to(at::kDouble), s_w) : s_w,
        w.at(layer + "s_r"), {{.mipe_threshold = config.mipe_threshold}, /*gate=*/by_head(parts[3])});
    const Tensor scaled = u_BTHV * w.at(layer + "s_O").exp().unsqueeze(-1);
    x_BTD = x_BTD + at::linear(scaled.flatten(2), w.at(layer + "o_proj.weight"));
  }
  return x_BTD * w.at("s_F").exp();
}

Tensor exact_head(const models::Model& model) {
  return unit_rows(exact_parameters(model).at("embed.weight"));
}

Named added_by_layers(const models::Model& model, const Tensor& tokens_BT, const Tensor& x_BTD) {
  const Weights w = exact_parameters(model);
  return {"what the layers add", x_BTD.to(at::kDouble) - embedded(w, tokens_BT) * w.at("s_F").exp()};
}

}  // namespace tamis::bench
