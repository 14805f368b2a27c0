#include "tamis/ops/softmax_attention/softmax_attention_cpu.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "tamis/ops/registration.h"
#include "tamis/ops/rows.h"
#include "tamis/ops/scratch.h"
#include "tamis/ops/softmax_attention/softmax_attention.h"
#include "tamis/ops/softmax_attention/softmax_attention_kernel.h"

namespace tamis::ops {
namespace {

using at::Tensor;

/// [B, T_q, H] -> [B, H, T_q], each head's numbers adjacent; undefined stays so.
Tensor by_head(const std::optional<Tensor>& query_scale) {
  return query_scale ? query_scale->to(at::kFloat).transpose(1, 2).contiguous() : Tensor();
}

float* of_head_or_null(const Tensor& x_BHT, const AttentionHead& head) {
  return x_BHT.defined() ? of_head(x_BHT, head) : nullptr;
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> softmax_attention_cpu(const Tensor& q, const Tensor& k, const Tensor& v,
                                                         const ScaledAttentionOptions& options) {
  const AttentionProblem problem(q, k, v, options.range());
  const Tensor query_scale = by_head(options.query_scale);
  const Tensor out = at::empty({problem.B, problem.T_q, problem.H, problem.V}, v.options().dtype(at::kFloat));
  const Tensor statistics = at::empty({problem.B, problem.H, problem.T_q, 2}, v.options().dtype(at::kFloat));
  problem.for_each_block(
      [&](const AttentionHead& head, const kernels::QueryBlock& block, ScratchMemory<float>& memory) {
        kernels::softmax_forward({.packed = head.packed,
                                  .visibility = head.visibility,
                                  .block = block,
                                  .q = head.q,
                                  .out = rows_of(out, head.batch, head.head),
                                  .query_origin = head.query_origin,
                                  .scale = static_cast<float>(options.scale),
                                  .query_scale = of_head_or_null(query_scale, head),
                                  .statistics = of_head<kernels::SoftmaxStatistics>(statistics, head),
                                  .scratch = memory.take(kernels::softmax_forward_scratch(problem.K, problem.V))});
      });
  if (v.scalar_type() == at::kFloat) return {out, at::empty({0}, out.options()), statistics};
  return {out.to(v.scalar_type()), out, statistics};
}

void softmax_attention_token(const AttentionToken& token) {
  if (token.count == 0) return static_cast<void>(std::fill_n(token.out, token.value_dim, 0.0f));
  kernels::SoftmaxStatistics statistics;
  kernels::softmax_forward(
      {.packed = packed_keys(token),
       .visibility = {},
       .block = query_block(token),
       .q = row_of(token.q, token.key_dim),
       .out = row_of(token.out, token.value_dim),
       .query_origin = token.count - 1,
       .scale = token.scale,
       .statistics = &statistics,
       .scratch = thread_memory<float>().take(kernels::softmax_forward_scratch(token.key_dim, token.value_dim))});
}

std::tuple<Tensor, Tensor, Tensor, Tensor> softmax_attention_backward_cpu(const Tensor& grad_in, const Tensor& q,
                                                                          const Tensor& k, const Tensor& v,
                                                                          const Tensor& out, const Tensor& statistics,
                                                                          const ScaledAttentionOptions& options) {
  const AttentionProblem problem(q, k, v, options.range());
  const Tensor grad = with_adjacent_rows(grad_in), query_scale = by_head(options.query_scale);
  const Tensor dq = empty_contiguous_like(q), dk = empty_contiguous_like(k), dv = empty_contiguous_like(v);
  const Tensor d_query_scale = query_scale.defined() ? empty_contiguous_like(query_scale) : Tensor();
  const auto add = [&](const AttentionHead& head, int64_t first, int64_t last, float* dk_rows, float* dv_rows,
                       ScratchMemory<float>& memory) {
    kernels::softmax_backward({.packed = head.packed,
                               .visibility = head.visibility,
                               .first = first,
                               .last = last,
                               .q = head.q,
                               .out = rows_of(out, head.batch, head.head),
                               .grad = rows_of(grad, head.batch, head.head),
                               .dq = rows_of(dq, head.batch, head.head),
                               .query_origin = head.query_origin,
                               .scale = static_cast<float>(options.scale),
                               .query_scale = of_head_or_null(query_scale, head),
                               .d_query_scale = of_head_or_null(d_query_scale, head),
                               .statistics = of_head<kernels::SoftmaxStatistics>(statistics, head),
                               .dk = dk_rows,
                               .dv = dv_rows,
                               .scratch = memory.take(kernels::softmax_backward_scratch(problem.K, problem.V))});
  };
  problem.gather_key_gradients(add, dk, dv);
  if (!d_query_scale.defined()) return {dq, dk, dv, at::empty({0}, q.options())};
  return {dq, dk, dv, d_query_scale.transpose(1, 2).contiguous().to(options.query_scale->scalar_type())};
}

}  // namespace tamis::ops
