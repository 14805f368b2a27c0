#pragma once

#include <ATen/core/Tensor.h>

namespace tamis::ops {

/// Who multiplies float32 matrices on the CPU.
enum class Float32Products {
  kAten,    ///< whoever at::matmul asks, MKL as a rule
  kOneDnn,  ///< oneDNN, as it stands in LibTorch
};

/// At first the faster one on this processor as far as it was measured: oneDNN on AMD's family 1Ah (EPYC with Zen 5),
/// where MKL uses 256-bit instructions and takes 2.0 to 2.4 times as long; at:: on all others. Chosen by the
/// processor's name, not by a measurement: the bits of a result are the same in every process.
Float32Products float32_products();

/// For tests and measurements, while nobody multiplies. Where LibTorch has no such product of oneDNN's, at:: stays.
void set_float32_products(Float32Products products);

/// Y = X W^T: x [..., D], weight_ED [E, D], both of one dtype and device; result [..., E]. As at::linear,
/// differentiable, but for who multiplies in float32 on the CPU. Throws what at::linear throws. Cost: 2 E D operations
/// a row. oneDNN wants x contiguous and the matrix contiguous one way or the other: copies of what is not; and it
/// compiles a kernel at the first call with new sizes.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight_ED);

/// dX = dY W of Y = X W^T: dy [..., E], weight_ED [E, D]; result [..., D].
at::Tensor linear_input_gradient(const at::Tensor& dy, const at::Tensor& weight_ED);

/// dW = dY^T X of Y = X W^T, summed over the rows: dy [..., E], x [..., D] with as many rows; result [E, D],
/// contiguous. oneDNN wants the smaller of dy and x transposed, 512 rows at a time; memory for two more results.
at::Tensor linear_weight_gradient(const at::Tensor& dy, const at::Tensor& x);

/// What becomes of the memory that a product is written to.
enum class Into { kReplace, kAdd };

/// The same three of matrices, with their result in memory that is there, of its shape and dtype; nothing is recorded
/// for a gradient. oneDNN's product is made apart: memory for one more result, and for a third of more than 512 summed
/// rows.
void linear_into(const at::Tensor& result_RE, Into into, const at::Tensor& x_RD, const at::Tensor& weight_ED);
void linear_input_gradient_into(const at::Tensor& result_RD, Into into, const at::Tensor& dy_RE,
                                const at::Tensor& weight_ED);
void linear_weight_gradient_into(const at::Tensor& result_ED, Into into, const at::Tensor& dy_RE,
                                 const at::Tensor& x_RD);

}  // namespace tamis::ops
