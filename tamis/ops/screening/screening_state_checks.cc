#include "tamis/ops/screening/screening_state_checks.h"

#include <ATen/ATen.h>

namespace tamis::ops {

using at::Tensor;

int64_t check_state_step(const StateStepSizes& sizes, const Tensor& q, const Tensor& k, const Tensor& v,
                         const std::optional<Tensor>& gate,
                         const std::function<void(const char* name, const Tensor& x)>& check) {
  const auto& [B, H, K, V] = sizes;
  TORCH_CHECK_VALUE(q.dim() == 4 && q.size(1) >= 1 && q.sizes() == at::IntArrayRef({B, q.size(1), H, K}),
                    "screening state: q must have the shape [", B, ", C >= 1, ", H, ", ", K, "], but has ", q.sizes());
  const int64_t C = q.size(1);
  const auto check_shape = [&](const char* name, const Tensor& x, int64_t width) {
    TORCH_CHECK_VALUE(x.sizes() == at::IntArrayRef({B, C, H, width}), "screening state: ", name,
                      " must have the shape [", B, ", ", C, ", ", H, ", ", width, "], but has ", x.sizes());
    check(name, x);
  };
  check_shape("q", q, K);
  check_shape("k", k, K);
  check_shape("v", v, V);
  if (gate) check_shape("gate", *gate, V);
  return C;
}

}  // namespace tamis::ops
