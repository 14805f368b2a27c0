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
/// It depends on the instruction set (tamis/base/instruction_set.h). Without AVX-512: MKL for float32, and float32
/// products for bfloat16, where at:: is a hundred times slower. With bfloat16 instructions: at:: for bfloat16, and with
/// AMX in tiles, because there oneDNN divides the sums of a product among the threads, so that its bits depend on their
/// number. In the other cases (float32 with AVX-512, which MKL does not use on some processors; bfloat16 with AVX-512
/// but without its instructions) the first call compares two backends in some 50 ms, on one thread and by its processor
/// time, whatever else the cores do. kAten for float32 and kWidened for bfloat16 are replaced only if the other one is
/// 1.5 times as fast, so that every process of a machine makes the same choice.
MatmulBackend matmul_backend(at::ScalarType dtype);

/// The backends that matmul_backend can return on this processor.
std::vector<MatmulBackend> matmul_backends(at::ScalarType dtype);

/// Overrides the choice, to continue a run with its backend and for measurements. No product may run during the call.
/// Throws if the dtype has no such backend here.
void set_matmul_backend(at::ScalarType dtype, MatmulBackend backend);

}  // namespace tamis::ops
