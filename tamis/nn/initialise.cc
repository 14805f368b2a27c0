#include "tamis/nn/initialise.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tamis/base/random.h"

namespace tamis::nn {

void fill_normal(const at::Tensor& matrix, double deviation, uint64_t seed, uint64_t stream) {
  TORCH_INTERNAL_ASSERT(matrix.dim() == 2 && matrix.is_contiguous() && matrix.scalar_type() == at::kFloat);
  float* data = matrix.data_ptr<float>();
  const int64_t columns = matrix.size(1);
  at::parallel_for(0, matrix.size(0), 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      Random random({seed, stream, static_cast<uint64_t>(row)});
      for (int64_t column = 0; column < columns; ++column) {
        data[row * columns + column] = static_cast<float>(deviation * random.normal());
      }
    }
  });
}

}  // namespace tamis::nn
