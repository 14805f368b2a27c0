#pragma once

#include <ATen/core/Tensor.h>

namespace tamis::nn {

/// Rows scaled to unit length: x / |x| along the last dimension. Unlike x / max(|x|, 1e-12), Eq. (5) in the operators,
/// a row of length up to 1e-12 becomes zero and gets no gradient (a clipped denominator alone would give it 1e12 times
/// the gradient).
///
/// x_nD      [..., D] float32 or float64
/// Gradient  x, once: (g - y (y . g)) / |x|.
at::Tensor unit_rows(const at::Tensor& x_nD);

/// scale x / |x| of one row in plain memory, without a gradient.
void unit_row(const float* x, int64_t dim, double scale, float* out);

/// exp(log_scale) x, for one learned scalar.
///
/// x_BTD      [B, T, D] float32 or float64
/// log_scale  [], the dtype of x
/// Gradient   x and log_scale, once; the sum for log_scale has the same bits for any number of threads.
at::Tensor exp_scaled(const at::Tensor& x_BTD, const at::Tensor& log_scale);

/// The same for `size` numbers in plain memory, without a gradient; `out` may be x.
void exp_scaled_row(const float* x, int64_t size, double log_scale, float* out);

}  // namespace tamis::nn
