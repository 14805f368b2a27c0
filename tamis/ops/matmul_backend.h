#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

namespace tamis::ops {

/// What computes matrix products on the CPU (tamis/ops/linear.h).
enum class MatmulBackend {
  kAten,     ///< at::matmul: MKL for float32 as a rule, oneDNN for bfloat16
  kOneDnn,   ///< float32 by oneDNN, as LibTorch holds it
  kWidened,  ///< bfloat16 widened to float32, multiplied as float32 is, and the result rounded
};

/// `aten`, `onednn`, `widened`.
std::string to_string(MatmulBackend backend);

/// The backend of products of float32 or bfloat16 matrices; kAten for every other dtype.
///
/// It follows from what the processor can do (tamis/base/instruction_set.h): without AVX-512, MKL for float32 and
/// float32 products for bfloat16, which at:: multiplies a hundred times slower there; with bfloat16 instructions at::
/// for bfloat16. Where that does not decide (float32 with AVX-512, which MKL leaves unused on some processors; bfloat16
/// with AVX-512 but without its instructions), the first call compares both in some 50 ms; what differs by less than
/// half stays with at:: or, for bfloat16, with float32 products, so that every process of a machine decides alike.
MatmulBackend matmul_backend(at::ScalarType dtype);

/// Those that matmul_backend can return on this processor.
std::vector<MatmulBackend> matmul_backends(at::ScalarType dtype);

/// Replaces the choice: to continue a run with the backend that it began with, and for measurements. No product may run
/// meanwhile. Throws when the dtype has no such backend here.
void set_matmul_backend(at::ScalarType dtype, MatmulBackend backend);

}  // namespace tamis::ops
