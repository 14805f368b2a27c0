#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tamis::models {

/// Throws ExitCode::kInput when an id lies outside [0, vocab_size).
void check_token_ids(const at::Tensor& tokens, int64_t vocab_size);

}  // namespace tamis::models
