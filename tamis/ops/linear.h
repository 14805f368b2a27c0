#pragma once

#include <ATen/core/Tensor.h>

namespace tamis::ops {

// Products of a layer by the backend of its dtype (tamis/ops/matmul_backend.h). If bfloat16 is multiplied in float32,
// x is widened 2,048 rows at a time and the matrix as a whole, which takes memory for both in float32.

/// Y = X W^T: x [..., D], weight_ED [E, D], both of one dtype and device; result [..., E]. Differentiable; equal to
/// at::linear but for the matmul backend on the CPU. Throws what at::linear throws. Cost: 2 E D operations a row.
/// oneDNN copies an x that is not contiguous, and a matrix that is contiguous neither by rows nor by columns; it
/// compiles a kernel at the first call with new sizes.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight_ED);

/// dX = dY W of Y = X W^T: dy [..., E], weight_ED [E, D]; result [..., D].
at::Tensor linear_input_gradient(const at::Tensor& dy, const at::Tensor& weight_ED);

/// dW = dY^T X of Y = X W^T, summed over the rows: dy [..., E], x [..., D] with as many rows; result [E, D],
/// contiguous. oneDNN transposes the smaller of dy and x, 512 rows at a time, and takes memory for two more results.
at::Tensor linear_weight_gradient(const at::Tensor& dy, const at::Tensor& x);

/// Both gradients of Y = X W^T, with the bits of the two functions above.
struct LinearGradients {
  at::Tensor dx;     // [..., D]
  at::Tensor dw_ED;  // [E, D], contiguous
};

/// Where bfloat16 is multiplied in float32, dy is widened once for both.
LinearGradients linear_gradients(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight_ED);

/// Whether a product replaces what is in its memory or is added to it.
enum class Into { kReplace, kAdd };

/// The same three for matrices, with a given tensor for the result; nothing is recorded for a gradient. Backends other
/// than kAten compute the product apart, which takes memory for one more result, and for a third one if more than 512
/// rows are summed.
void linear_into(const at::Tensor& result_RE, Into into, const at::Tensor& x_RD, const at::Tensor& weight_ED);
void linear_input_gradient_into(const at::Tensor& result_RD, Into into, const at::Tensor& dy_RE,
                                const at::Tensor& weight_ED);
void linear_weight_gradient_into(const at::Tensor& result_ED, Into into, const at::Tensor& dy_RE,
                                 const at::Tensor& x_RD);

}  // namespace tamis::ops
