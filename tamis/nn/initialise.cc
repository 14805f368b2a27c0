#include "tamis/nn/initialise.h"

#include <ATen/ATen.h>

#include "tamis/base/random.h"
#include "tamis/ops/parallel.h"

namespace tamis::nn {

void fill_normal(const at::Tensor& matrix, double deviation, uint64_t seed, uint64_t stream) {
  TORCH_INTERNAL_ASSERT(matrix.is_cpu() && matrix.dim() == 2 && matrix.is_contiguous() &&
                        matrix.scalar_type() == at::kFloat);
  float* data = matrix.data_ptr<float>();
  const int64_t columns = matrix.size(1);
  ops::parallel_items(matrix.size(0), [&](int64_t row) {
    Random random({seed, stream, static_cast<uint64_t>(row)});
    for (int64_t column = 0; column < columns; ++column) {
      data[row * columns + column] = static_cast<float>(deviation * random.normal());
    }
  });
}

}  // namespace tamis::nn
