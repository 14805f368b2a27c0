#pragma once

#include "tamis/models/model_config.h"
#include "tamis/nn/rotary.h"

namespace tamis::models {

/// The rotation of queries and keys in a model with rotary positions.
inline nn::RotaryOptions rotary_options(const ModelConfig& config) {
  nn::RotaryOptions options{.theta = config.rope_theta, .factor = config.rope_factor};
  if (config.rope_scaling == "llama3") {
    options.llama3 = nn::Llama3Scaling{.low_frequency_factor = config.rope_low_freq_factor,
                                       .high_frequency_factor = config.rope_high_freq_factor,
                                       .original_length = static_cast<double>(config.rope_original_length)};
  }
  return options;
}

}  // namespace tamis::models
