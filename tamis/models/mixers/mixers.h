#pragma once

#include <memory>

#include "tamis/models/mixer.h"

// What makes each mixer: mixers.cc has a line for each.

namespace tamis::models {

std::unique_ptr<Mixer> make_full_attention(const StackConfig& config, at::Device device);
std::unique_ptr<Mixer> make_sliding_window_attention(const StackConfig& config, at::Device device);
std::unique_ptr<Mixer> make_entmax(const StackConfig& config, at::Device device);
std::unique_ptr<Mixer> make_stick_breaking(const StackConfig& config, at::Device device);
std::unique_ptr<Mixer> make_sieve(const StackConfig& config, at::Device device);
std::unique_ptr<Mixer> make_mlstm(const StackConfig& config, at::Device device);
std::unique_ptr<Mixer> make_screening(const StackConfig& config, at::Device device);

void check_mlstm_sizes(const StackConfig& config);

}  // namespace tamis::models
