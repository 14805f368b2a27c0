#include "tamis/ops/checks.h"

#include <ATen/ATen.h>

namespace tamis::ops {

using at::Tensor;

void check_shape(const char* op, const char* name, const Tensor& x, at::SymIntArrayRef expected, const char* meaning) {
  TORCH_CHECK_VALUE(x.sym_sizes() == expected, op, ": ", name, " must have the shape ", expected, " (", meaning,
                    "), but has ", x.sym_sizes());
}

void check_device(const char* op, const char* name, const Tensor& x, const Tensor& q) {
  TORCH_CHECK_VALUE(x.device() == q.device(), op, ": ", name, " must be on the device of q, ", q.device(),
                    ", but is on ", x.device());
}

void check_like(const char* op, const char* name, const Tensor& x, const Tensor& q) {
  check_device(op, name, x, q);
  TORCH_CHECK_VALUE(x.scalar_type() == q.scalar_type(), op, ": ", name, " must have the dtype of q, ", q.scalar_type(),
                    ", but has ", x.scalar_type());
}

void check_queries_keys_values(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                               int64_t least_key_dim) {
  TORCH_CHECK_VALUE(q.dim() == 4, op, ": q must have 4 dimensions [B, T_q, H, K], but has ", q.sym_sizes());
  TORCH_CHECK_VALUE(at::isFloatingType(q.scalar_type()), op, ": q must be floating point, but is ", q.scalar_type());
  TORCH_CHECK_VALUE(q.sym_size(3) >= least_key_dim, op, ": q needs K >= ", least_key_dim,
                    " dimensions, but has the shape ", q.sym_sizes());
  TORCH_CHECK_VALUE(k.dim() == 4 && k.sym_size(0) == q.sym_size(0) && k.sym_size(1) >= q.sym_size(1) &&
                        k.sym_size(2) == q.sym_size(2) && k.sym_size(3) == q.sym_size(3),
                    op, ": k must have the shape of q ", q.sym_sizes(), " or more positions, but has ", k.sym_sizes());
  TORCH_CHECK_VALUE(v.dim() == 4 && v.sym_size(0) == k.sym_size(0) && v.sym_size(1) == k.sym_size(1) &&
                        v.sym_size(2) == k.sym_size(2) && v.sym_size(3) >= 1,
                    op, ": v must have the shape of k ", k.sym_sizes(), " up to the last dimension, but has ",
                    v.sym_sizes());
  check_like(op, "k", k, q);
  check_like(op, "v", v, q);
}

void check_per_head(const char* op, const char* name, const Tensor& x, const Tensor& q) {
  check_device(op, name, x, q);
  TORCH_CHECK_VALUE(x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble, op, ": ", name,
                    " must be float32 or float64, but is ", x.scalar_type());
  check_shape(op, name, x, {q.sym_size(2)}, "one number per head of q");
}

void check_document(const char* op, const Tensor& document, const Tensor& x, const c10::SymInt& positions,
                    const char* meaning) {
  check_device(op, "document", document, x);
  TORCH_CHECK_VALUE(at::isIntegralType(document.scalar_type(), /*includeBool=*/false), op,
                    ": document must hold integers, but is ", document.scalar_type());
  check_shape(op, "document", document, {x.sym_size(0), positions}, meaning);
}

}  // namespace tamis::ops
