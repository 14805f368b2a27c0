#include "tamis/ops/rows.h"

#include <cstddef>

namespace tamis::ops {

kernels::Storage storage_of(at::ScalarType dtype) {
  if (dtype == at::kDouble) return kernels::Storage::kFloat64;
  return dtype == at::kBFloat16 ? kernels::Storage::kBFloat16 : kernels::Storage::kFloat32;
}

at::Tensor with_adjacent_rows(const at::Tensor& x_BTHD) {
  return x_BTHD.stride(3) == 1 || x_BTHD.size(3) == 1 ? x_BTHD : x_BTHD.contiguous();
}

kernels::Rows rows_of(const at::Tensor& x_BTHD, int64_t batch, int64_t head) {
  const int64_t start = batch * x_BTHD.stride(0) + head * x_BTHD.stride(2);
  auto* data = static_cast<std::byte*>(x_BTHD.data_ptr()) + start * x_BTHD.element_size();
  return {data, x_BTHD.stride(1), storage_of(x_BTHD.scalar_type())};
}

}  // namespace tamis::ops
