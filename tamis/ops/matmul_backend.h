#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

namespace tamis::ops {

/// The library and precision of matrix products on the CPU (tamis/ops/linear.h).
enum class MatmulBackend {
  kAten,     ///< at::matmul: usually MKL for float32, oneDNN for bfloat16
  kOneDnn,   ///< float32 by the oneDNN in LibTorch
  kWidened,  ///< bfloat16 widened to float32 and multiplied, and the result rounded
  kTiled,    ///< bfloat16 by at:: in tiles that follow from the shape, each on one thread
};

/// `aten`, `onednn`, `widened`, `tiled`.
std::string to_string(MatmulBackend backend);

/// The backend of products of float32 or bfloat16 matrices; kAten for every other dtype.
///
/// It follows from what the processor can do (tamis/base/instruction_set.h), so that runs on a machine have the same
/// bits. float32: MKL, which uses AVX-512 on Intel's processors only; oneDNN on others with 512-bit units
/// (tamis/ops/vector_units.h). bfloat16: at:: with fast instructions for it, and with AMX in tiles, because there
/// oneDNN divides the sums of a product among the threads, so that its bits depend on their number; without such
/// instructions float32 products, because at:: is slower, without AVX-512 a hundred times.
MatmulBackend matmul_backend(at::ScalarType dtype);

/// The backends of such products on this processor; the first is the default.
std::vector<MatmulBackend> matmul_backends(at::ScalarType dtype);

/// Overrides the choice, to continue a run with its backend and for measurements. No product may run during the call.
/// Throws if the dtype has no such backend here.
void set_matmul_backend(at::ScalarType dtype, MatmulBackend backend);

}  // namespace tamis::ops
