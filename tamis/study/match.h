#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "tamis/models/model.h"

namespace tamis::study {

/// The value of one key of a model configuration that brings its size closest to a target.
struct SizeFit {
  std::string key;  // "intermediate_size"
  int64_t value = 0;
  nlohmann::json config;              // the complete configuration with that value
  models::ParameterCount parameters;  // of this configuration
};

/// The relative difference of two sizes: max(a, b) / min(a, b) - 1.
double size_difference(int64_t a, int64_t b);

/// Changes one key of a complete configuration so that its number of parameters without the embedding is closest to
/// `target`: intermediate_size if the model has MLPs, else value_dim or, if that leaves a difference above 0.9%,
/// key_dim or num_attention_heads. The current value of the key has no influence. Counts the parameters of about 30
/// models per key, without allocating them.
SizeFit nearest_fit(const nlohmann::json& config, int64_t target);

}  // namespace tamis::study
