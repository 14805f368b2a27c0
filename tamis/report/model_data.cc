#include "tamis/report/model_data.h"

#include <cmath>

#include "tamis/models/parameter_parts.h"

namespace tamis::report {

nlohmann::json describe_model(const nlohmann::json& config) {
  const models::ParameterCount count = models::count_parameters(config);
  const models::ParameterParts parts = models::count_parts(config);
  const auto size = [&config](const char* key) { return config.contains(key) ? config[key] : nlohmann::json(); };
  return {
      {"type", size("model_type")},
      {"parameters", count.total},
      {"parameters_without_embedding", count.without_embedding},
      {"parts",
       {{"embedding", parts.embedding},
        {"mixers", parts.mixers},
        {"mlp", parts.mlp},
        {"norms", parts.norms},
        {"head", parts.head}}},
      {"layers", size("num_hidden_layers")},
      {"heads", size("num_attention_heads")},
      {"hidden_size", size("hidden_size")},
      {"vocab_size", size("vocab_size")},
      {"training_length", size("max_position_embeddings")},
      {"config", config},
  };
}

nlohmann::json describe_flops(const models::Model& model, int64_t length) {
  const models::Flops flops = model.flops_per_token(length);
  return {
      {"length", length}, {"weights", flops.weights}, {"similarities", flops.similarities}, {"values", flops.values}};
}

nlohmann::json describe_screening_heads(const std::vector<models::Model::ScreeningHead>& heads) {
  const auto finite = [](double value) { return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(); };
  nlohmann::json result = nlohmann::json::array();
  for (const models::Model::ScreeningHead& head : heads) {
    result.push_back(
        {{"layer", head.layer}, {"head", head.head}, {"window", finite(head.window)}, {"accept", finite(head.accept)}});
  }
  return result;
}

}  // namespace tamis::report
