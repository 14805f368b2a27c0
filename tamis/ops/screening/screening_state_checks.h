#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace tamis::ops {

/// B states, each of H heads with keys [K] and values [V].
struct StateStepSizes {
  int64_t B, H, K, V;
};

/// Checks the shapes of a step's inputs and calls `check(name, tensor)` for each. Returns C, the tokens of the step.
/// Throws c10::ValueError.
int64_t check_state_step(const StateStepSizes& sizes, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const std::optional<at::Tensor>& gate,
                         const std::function<void(const char* name, const at::Tensor& x)>& check);

}  // namespace tamis::ops
