#include "tamis/models/parameter_parts.h"

#include <ATen/ATen.h>

#include <string>

#include "tamis/models/model.h"

namespace tamis::models {
namespace {

std::unique_ptr<Model> shapes_of(const nlohmann::json& complete_config) {
  return make_model(complete_config, Start{.seed = std::nullopt, .device = at::kMeta});
}

int64_t ParameterParts::*part_of(const std::string& name) {
  if (name == "embed.weight" || name == "s_E") return &ParameterParts::embedding;
  if (name == "head.weight" || name == "s_F") return &ParameterParts::head;
  if (name.ends_with(".gate_up") || name.ends_with(".down_proj.weight")) return &ParameterParts::mlp;
  if (name == "norm.weight" || name.ends_with(".mixer_norm.weight") || name.ends_with(".mlp_norm.weight")) {
    return &ParameterParts::norms;
  }
  return &ParameterParts::mixers;
}

}  // namespace

ParameterParts count_parts(const nlohmann::json& complete_config) {
  ParameterParts parts;
  for (const Parameter& parameter : shapes_of(complete_config)->parameters()) {
    parts.*part_of(parameter.name) += parameter.tensor.numel();
  }
  return parts;
}

KeptActivations count_activations(const nlohmann::json& complete_config) {
  const auto model = shapes_of(complete_config);
  KeptActivations kept;
  int64_t layers = 0;
  for (const Parameter& parameter : model->parameters()) {
    if (!parameter.name.starts_with("layers.") || parameter.tensor.dim() < 2) continue;
    kept.products += parameter.tensor.size(0) + parameter.tensor.size(1);
    layers = std::max<int64_t>(layers, std::stoll(parameter.name.substr(std::string("layers.").size())) + 1);
  }
  kept.residual = 2 * layers * model->hidden_size();
  return kept;
}

}  // namespace tamis::models
