// The mLSTM in plain torch: token by token as it is defined, and all tokens at once. Equation numbers: README.md.

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "tamis/ops/attention.h"
#include "tamis/ops/mlstm/mlstm.h"
#include "tamis/ops/mlstm/mlstm_cpu.h"

namespace tamis::ops::reference {

using at::Tensor;
using Result = std::tuple<Tensor, Tensor, Tensor, Tensor>;

namespace {

struct Inputs {
  Tensor q, k, v, i, log_f;  // q with its 1 / sqrt(K)
  MlstmState start;

  Inputs(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const Tensor& i_in, const Tensor& f_in,
         const MlstmOptions& options)
      : q(widened(q_in) / std::sqrt(static_cast<double>(q_in.size(3)))), k(widened(k_in)), v(widened(v_in)) {
    i = i_in.to(q.scalar_type());
    log_f = at::log_sigmoid(f_in.to(q.scalar_type()));
    const int64_t B = q.size(0), H = q.size(2), K = q.size(3), V = v.size(3);
    start = options.state.value_or(MlstmState{at::zeros({B, H, K, V}, q.options()), at::zeros({B, H, K}, q.options()),
                                              at::zeros({B, H}, q.options())});
  }
};

/// max(|n . q|, exp(-m)) + 1e-6. The exponential is limited to a finite float32; h is 0 there in any case.
Tensor denominator(const Tensor& n_dot_q, const Tensor& m) {
  return at::maximum(n_dot_q.abs(), m.neg().clamp_max(kLargestNegativeM).exp()) + kMlstmEpsilon;
}

/// True where a token begins another document than the one before: bool [B, T].
Tensor begins_document(const Tensor& document_BT) {
  Tensor begins = at::zeros_like(document_BT, document_BT.options().dtype(at::kBool));
  if (begins.size(1) > 1) begins.slice(1, 1).copy_(document_BT.slice(1, 1) != document_BT.slice(1, 0, -1));
  return begins;
}

}  // namespace

Result mlstm(const Tensor& q_BTHK, const Tensor& k_BTHK, const Tensor& v_BTHV, const Tensor& i_BTH, const Tensor& f_BTH,
             const MlstmOptions& options) {
  const Inputs in(q_BTHK, k_BTHK, v_BTHV, i_BTH, f_BTH, options);
  auto [C, n, m] = in.start;
  Tensor begins;
  if (options.document) begins = begins_document(*options.document);
  std::vector<Tensor> h;
  for (int64_t t = 0; t < in.q.size(1); ++t) {
    const Tensor q = in.q.select(1, t), k = in.k.select(1, t), v = in.v.select(1, t);
    const Tensor i = in.i.select(1, t), log_f = in.log_f.select(1, t);
    if (begins.defined()) {
      const Tensor reset = begins.select(1, t).unsqueeze(1);
      C = C.masked_fill(reset.unsqueeze(2).unsqueeze(3), 0);
      n = n.masked_fill(reset.unsqueeze(2), 0);
      m = m.masked_fill(reset, 0);
    }
    const Tensor m_t = at::maximum(log_f + m, i);  // (1)
    const Tensor keep = (log_f + m - m_t).exp().unsqueeze(-1), add = (i - m_t).exp().unsqueeze(-1);
    C = keep.unsqueeze(-1) * C + (add * k).unsqueeze(-1) * v.unsqueeze(-2);  // (2)
    n = keep * n + add * k;                                                  // (3)
    m = m_t;
    const Tensor numerator = at::matmul(q.unsqueeze(-2), C).squeeze(-2);
    h.push_back(numerator / denominator((n * q).sum(-1), m).unsqueeze(-1));  // (4)
  }
  const Tensor all = h.empty() ? at::empty(in.v.sizes(), in.v.options()) : at::stack(h, 1);
  return {all.to(v_BTHV.scalar_type()), C, n, m};
}

Result mlstm_parallel(const Tensor& q_BTHK, const Tensor& k_BTHK, const Tensor& v_BTHV, const Tensor& i_BTH,
                      const Tensor& f_BTH, const MlstmOptions& options) {
  const Inputs in(q_BTHK, k_BTHK, v_BTHV, i_BTH, f_BTH, options);
  const int64_t T = in.q.size(1);
  if (T == 0) return {at::empty_like(v_BTHV), in.start.C_BHKV, in.start.n_BHK, in.start.m_BH};
  // Sums of many logarithms, in float64 as their differences would cancel.
  const Tensor i = in.i.to(at::kDouble).transpose(1, 2);                 // [B, H, T]
  const Tensor F = in.log_f.to(at::kDouble).transpose(1, 2).cumsum(-1);  // (5)
  const Tensor m_0 = in.start.m_BH.to(at::kDouble).unsqueeze(-1);
  Tensor visible = at::ones({T, T}, at::TensorOptions(F.device()).dtype(at::kBool)).tril().unsqueeze(0).unsqueeze(0);
  Tensor from_start = F + m_0;  // log-weight of what was before the document: m = 0 but for the first one
  Tensor first = at::ones({1, 1, T}, visible.options());
  if (options.document) {
    const Tensor number = begins_document(*options.document).to(at::kLong).cumsum(1);  // [B, T]
    visible = visible.logical_and((number.unsqueeze(2) == number.unsqueeze(1)).unsqueeze(1));
    first = (number == 0).unsqueeze(1);
    // F before the document's first token, which is where its number appears first.
    const Tensor begin = (number.unsqueeze(2) > number.unsqueeze(1)).sum(2).unsqueeze(1).expand(F.sizes());
    const Tensor before = at::cat({at::zeros_like(m_0), F}, -1).gather(-1, begin);
    from_start = at::where(first, from_start, F - before);
  }
  const Tensor pairs =
      (F.unsqueeze(-1) - F.unsqueeze(-2) + i.unsqueeze(-2)).masked_fill(visible.logical_not(), -INFINITY);
  const Tensor m = at::maximum(std::get<0>(pairs.max(-1)), from_start);  // (6)
  const Tensor D = (pairs - m.unsqueeze(-1)).exp().to(in.q.scalar_type());
  const Tensor W = (from_start - m).masked_fill(first.logical_not(), -INFINITY).exp().to(in.q.scalar_type());
  const Tensor m_T = m.to(in.q.scalar_type());
  const Tensor weights = at::einsum("bthk,bshk->bhts", {in.q, in.k}) * D;
  const Tensor numerator = at::einsum("bhts,bshv->bhtv", {weights, in.v}) +
                           W.unsqueeze(-1) * at::einsum("bthk,bhkv->bhtv", {in.q, in.start.C_BHKV});
  const Tensor n_dot_q = weights.sum(-1) + W * at::einsum("bthk,bhk->bht", {in.q, in.start.n_BHK});
  const Tensor h = numerator / denominator(n_dot_q, m_T).unsqueeze(-1);  // (7)
  const Tensor last = D.select(2, T - 1), keep = W.select(2, T - 1).unsqueeze(-1);
  const Tensor C = keep.unsqueeze(-1) * in.start.C_BHKV + at::einsum("bhs,bshk,bshv->bhkv", {last, in.k, in.v});
  const Tensor n = keep * in.start.n_BHK + at::einsum("bhs,bshk->bhk", {last, in.k});
  return {h.transpose(1, 2).to(v_BTHV.scalar_type()), C, n, m_T.select(2, T - 1)};
}

}  // namespace tamis::ops::reference
