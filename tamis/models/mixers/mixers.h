#pragma once

#include <memory>

#include "tamis/models/mixer.h"

// The makers of all mixers, which mixers.cc registers.

namespace tamis::models {

std::unique_ptr<Mixer> make_full_attention(const ModelConfig& config, at::Device device);
std::unique_ptr<Mixer> make_sliding_window_attention(const ModelConfig& config, at::Device device);
std::unique_ptr<Mixer> make_entmax(const ModelConfig& config, at::Device device);
std::unique_ptr<Mixer> make_stick_breaking(const ModelConfig& config, at::Device device);
std::unique_ptr<Mixer> make_sieve(const ModelConfig& config, at::Device device);
std::unique_ptr<Mixer> make_mlstm(const ModelConfig& config, at::Device device);
std::unique_ptr<Mixer> make_screening(const ModelConfig& config, at::Device device);

void check_mlstm_sizes(const ModelConfig& config);
void check_screening_sizes(const ModelConfig& config);

}  // namespace tamis::models
