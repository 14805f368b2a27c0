#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "tamis/models/model.h"

namespace tamis::shootout {

/// One key of a model and the value that brings its size nearest to another's.
struct SizeFit {
  std::string key;  // "intermediate_size"
  int64_t value = 0;
  nlohmann::json config;              // complete, with that value
  models::ParameterCount parameters;  // of it
};

/// How far two sizes are apart, as a share of the smaller.
double size_difference(int64_t a, int64_t b);

/// Changes one key of a complete configuration so that its parameters beside the embedding come nearest to `target`:
/// intermediate_size where the model has MLPs, else value_dim, or, where that comes no nearer than 0.9%, key_dim or
/// num_attention_heads. The size that the configuration has now does not matter. Cost: some 30 models without memory.
SizeFit nearest_fit(const nlohmann::json& config, int64_t target);

}  // namespace tamis::shootout
