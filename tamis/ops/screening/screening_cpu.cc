#include "tamis/ops/screening/screening_cpu.h"

#include <c10/util/Exception.h>

namespace tamis::ops {

at::Tensor screening_cpu(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         const ScreeningOptions&) {
  TORCH_CHECK(false);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> screening_backward_cpu(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
    const ScreeningOptions&) {
  TORCH_CHECK(false);
}

}  // namespace tamis::ops
