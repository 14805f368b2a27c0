#pragma once

#include <ATen/core/Tensor.h>

namespace tamis::ops {

/// Who multiplies float32 matrices on the CPU.
enum class Float32Products {
  kAten,    ///< whoever at::matmul asks, MKL as a rule
  kOneDnn,  ///< oneDNN, as it stands in LibTorch
};

/// The faster one on this processor: oneDNN where MKL leaves half of every 512-bit unit idle (AMD from family 1Ah, Zen
/// 5, on), if this LibTorch has it. Chosen once, by the processor's name, not by a measurement: the bits of a result
/// are the same in every process.
Float32Products float32_products();

/// Y = X W^T: x [..., D], weight_ED [E, D], both of one dtype and device; result [..., E]. As at::linear,
/// differentiable, but for who multiplies in float32 on the CPU. The bits do not depend on the number of threads.
/// Cost: 2 E D operations a row; no memory beyond the result, but for a copy of an x that is not contiguous. Throws
/// what at::linear throws.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight_ED, Float32Products products = float32_products());

/// dX = dY W of Y = X W^T: dy [..., E], weight_ED [E, D]; result [..., D].
at::Tensor linear_input_gradient(const at::Tensor& dy, const at::Tensor& weight_ED,
                                 Float32Products products = float32_products());

/// dW = dY^T X of Y = X W^T, summed over the rows: dy [..., E], x [..., D]; result [E, D]. oneDNN wants the smaller of
/// dy and x transposed: a copy of it.
at::Tensor linear_weight_gradient(const at::Tensor& dy, const at::Tensor& x,
                                  Float32Products products = float32_products());

/// The same three with their result in memory that is there, `result` (contiguous, of the result's shape), or added to
/// it; x and dy are matrices, nothing is recorded for a gradient. oneDNN's product is made apart and copied: memory for
/// one more result.
struct Place {
  at::Tensor result;
  bool add = false;
};
void linear_into(const Place& to, const at::Tensor& x_RD, const at::Tensor& weight_ED,
                 Float32Products products = float32_products());
void linear_input_gradient_into(const Place& to, const at::Tensor& dy_RE, const at::Tensor& weight_ED,
                                Float32Products products = float32_products());
void linear_weight_gradient_into(const Place& to, const at::Tensor& dy_RE, const at::Tensor& x_RD,
                                 Float32Products products = float32_products());

}  // namespace tamis::ops
