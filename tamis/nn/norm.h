#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace tamis::nn {

/// Root-mean-square normalisation of rows: weight * x / sqrt(mean(x^2) + eps) along the last dimension.
///
/// x         [..., D]; bfloat16 computes in float32 and is rounded once
/// weight    [D] or none
/// Gradient  x and weight, once; the sum for the weight has the same bits for any number of threads.
at::Tensor rms_norm(const at::Tensor& x, const std::optional<at::Tensor>& weight, double eps);

/// Layer normalisation of rows: weight * (x - mean) / sqrt(variance + eps). As rms_norm otherwise.
at::Tensor layer_norm(const at::Tensor& x, const std::optional<at::Tensor>& weight, double eps);

/// rms_norm and layer_norm of one row in plain memory; `out` may be `x`.
void rms_norm_row(const float* x, const float* weight, int64_t dim, double eps, float* out);
void layer_norm_row(const float* x, const float* weight, int64_t dim, double eps, float* out);

}  // namespace tamis::nn
