#pragma once

#include <ATen/core/Tensor.h>

namespace tamis::ops {

// Products of a layer on the backend of its dtype (tamis/ops/matmul_backend.h). bfloat16 that is multiplied in float32
// is widened 2,048 rows at a time, and the matrix whole: memory for both in float32.

/// Y = X W^T: x [..., D], weight_ED [E, D], both of one dtype and device; result [..., E]. As at::linear,
/// differentiable, but for the matmul backend on the CPU. Throws what at::linear throws. Cost: 2 E D operations a row.
/// oneDNN needs x contiguous and the matrix contiguous one way or the other: copies of what is not; and it compiles a
/// kernel at the first call with new sizes.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight_ED);

/// dX = dY W of Y = X W^T: dy [..., E], weight_ED [E, D]; result [..., D].
at::Tensor linear_input_gradient(const at::Tensor& dy, const at::Tensor& weight_ED);

/// dW = dY^T X of Y = X W^T, summed over the rows: dy [..., E], x [..., D] with as many rows; result [E, D],
/// contiguous. oneDNN needs the smaller of dy and x transposed, 512 rows at a time; memory for two more results.
at::Tensor linear_weight_gradient(const at::Tensor& dy, const at::Tensor& x);

/// Both gradients of Y = X W^T, with the bits of the two functions above.
struct LinearGradients {
  at::Tensor dx;     // [..., D]
  at::Tensor dw_ED;  // [E, D], contiguous
};

/// Where bfloat16 is multiplied in float32, dy is widened once for both.
LinearGradients linear_gradients(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight_ED);

/// What becomes of the memory that a product is written to.
enum class Into { kReplace, kAdd };

/// The same three of matrices, with their result in memory that is there, of its shape and dtype; nothing is recorded
/// for a gradient. Where at:: does not multiply, the product is made apart: memory for one more result, and for a third
/// of more than 512 summed rows.
void linear_into(const at::Tensor& result_RE, Into into, const at::Tensor& x_RD, const at::Tensor& weight_ED);
void linear_input_gradient_into(const at::Tensor& result_RD, Into into, const at::Tensor& dy_RE,
                                const at::Tensor& weight_ED);
void linear_weight_gradient_into(const at::Tensor& result_ED, Into into, const at::Tensor& dy_RE,
                                 const at::Tensor& x_RD);

}  // namespace tamis::ops
