#include <ATen/ATen.h>

#include <algorithm>

#include "tamis/ops/registration.h"
#include "tamis/ops/rows.h"
#include "tamis/ops/scratch.h"
#include "tamis/ops/selection/selection.h"

namespace tamis::ops {
using at::Tensor;

std::tuple<Tensor, Tensor> selection_cpu(const SelectionKernels& kernels, const Selection& selection, const Tensor& q,
                                         const Tensor& k, const Tensor& v) {
  const AttentionProblem problem(q, k, v, selection.range());
  const Tensor out = at::empty({problem.B, problem.T_q, problem.H, problem.V}, v.options());
  const Tensor statistics = at::empty({problem.B, problem.H, problem.T_q, 2}, v.options().dtype(at::kFloat));
  const int64_t scratch = kernels::selection_forward_scratch(problem.T_k, problem.K, problem.V);
  problem.for_each_block(
      [&](const AttentionHead& head, const kernels::QueryBlock& block, ScratchMemory<float>& memory) {
        kernels.forward({.packed = head.packed,
                         .visibility = head.visibility,
                         .block = block,
                         .q = head.q,
                         .out = rows_of(out, head.batch, head.head),
                         .query_origin = head.query_origin,
                         .keys = problem.T_k,
                         .alpha = selection.alpha,
                         .scale = selection.scale,
                         .statistics = of_head<kernels::SelectionStatistics>(statistics, head),
                         .scratch = memory.take(scratch)});
      });
  return {out, statistics};
}

void selection_token(void (*forward)(const kernels::SelectionForward&), const AttentionToken& token, double alpha) {
  if (token.count == 0) return static_cast<void>(std::fill_n(token.out, token.value_dim, 0.0f));
  const kernels::QueryBlock block = query_block(token);
  kernels::SelectionStatistics statistics;
  forward({.packed = packed_keys(token),
           .visibility = {},
           .block = block,
           .q = row_of(token.q, token.key_dim),
           .out = row_of(token.out, token.value_dim),
           .query_origin = token.count - 1,
           .keys = token.count,
           .alpha = alpha,
           .scale = token.scale,
           .statistics = &statistics,
           .scratch = thread_memory<float>().take(
               kernels::selection_forward_scratch(token.count, token.key_dim, token.value_dim, block))});
}

std::tuple<Tensor, Tensor, Tensor> selection_backward_cpu(const SelectionKernels& kernels, const Selection& selection,
                                                          const Tensor& grad_in, const Tensor& statistics,
                                                          const Tensor& q, const Tensor& k, const Tensor& v) {
  const AttentionProblem problem(q, k, v, selection.range());
  const Tensor grad = with_adjacent_rows(grad_in);
  const Tensor dq = empty_contiguous_like(q), dk = empty_contiguous_like(k), dv = empty_contiguous_like(v);
  const int64_t scratch = kernels::selection_backward_scratch(problem.T_k, problem.K, problem.V);
  const auto add = [&](const AttentionHead& head, int64_t first, int64_t last, float* dk_rows, float* dv_rows,
                       ScratchMemory<float>& memory) {
    kernels.backward({.packed = head.packed,
                      .visibility = head.visibility,
                      .first = first,
                      .last = last,
                      .q = head.q,
                      .grad = rows_of(grad, head.batch, head.head),
                      .dq = rows_of(dq, head.batch, head.head),
                      .query_origin = head.query_origin,
                      .keys = problem.T_k,
                      .alpha = selection.alpha,
                      .scale = selection.scale,
                      .statistics = of_head<kernels::SelectionStatistics>(statistics, head),
                      .dk = dk_rows,
                      .dv = dv_rows,
                      .scratch = memory.take(scratch)});
  };
  problem.gather_key_gradients(add, dk, dv);
  return {dq, dk, dv};
}

}  // namespace tamis::ops
