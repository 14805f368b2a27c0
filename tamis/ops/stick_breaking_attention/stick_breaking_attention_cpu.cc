#include "tamis/ops/stick_breaking_attention/stick_breaking_attention_cpu.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "tamis/ops/registration.h"
#include "tamis/ops/rows.h"
#include "tamis/ops/scratch.h"
#include "tamis/ops/stick_breaking_attention/stick_breaking_attention_kernel.h"

namespace tamis::ops {

using at::Tensor;

AttentionRange range_of(const StickBreakingOptions& options) {
  return {.strict = options.strict, .document = options.document};
}

namespace {

/// One number of each query of a head, in a contiguous float32 [B, T_q, H] tensor.
kernels::QueryNumbers numbers_of(const Tensor& x_BTH, const AttentionHead& head) {
  const int64_t first = head.batch * x_BTH.stride(0) + head.head;
  return {x_BTH.mutable_data_ptr<float>() + first, x_BTH.size(2)};
}

}  // namespace

std::tuple<Tensor, Tensor> stick_breaking_attention_cpu(const Tensor& q, const Tensor& k, const Tensor& v,
                                                        const StickBreakingOptions& options, KeyPass pass) {
  const AttentionProblem problem(q, k, v, range_of(options));
  const Tensor out = at::empty({problem.B, problem.T_q, problem.H, problem.V}, v.options());
  const Tensor remainder = at::empty({problem.B, problem.T_q, problem.H}, v.options().dtype(at::kFloat));
  const auto answer = [&](const AttentionHead& head, const kernels::QueryBlock& block, ScratchMemory<float>& memory) {
    kernels::stick_breaking_forward(
        {.packed = head.packed,
         .visibility = head.visibility,
         .block = block,
         .q = head.q,
         .out = rows_of(out, head.batch, head.head),
         .remainder = numbers_of(remainder, head),
         .query_origin = head.query_origin,
         .scale = static_cast<float>(score_scale(options.scale, problem.K)),
         .end_early = pass == KeyPass::kUntilNothingIsLeft,
         .scratch = memory.take(kernels::stick_breaking_forward_scratch(problem.K, problem.V))});
  };
  problem.for_each_block(answer);
  return {out, remainder};
}

void stick_breaking_attention_token(const AttentionToken& token) {
  if (token.count == 0) return static_cast<void>(std::fill_n(token.out, token.value_dim, 0.0f));
  float remainder = 0;
  kernels::stick_breaking_forward({.packed = packed_keys(token),
                                   .visibility = {},
                                   .block = query_block(token),
                                   .q = row_of(token.q, token.key_dim),
                                   .out = row_of(token.out, token.value_dim),
                                   .remainder = {&remainder, 1},
                                   .query_origin = token.count - 1,
                                   .scale = token.scale,
                                   .scratch = thread_memory<float>().take(
                                       kernels::stick_breaking_forward_scratch(token.key_dim, token.value_dim))});
}

std::tuple<Tensor, Tensor, Tensor> stick_breaking_attention_backward_cpu(
    const Tensor& grad_in, const Tensor& grad_remainder_in, const Tensor& q, const Tensor& k, const Tensor& v,
    const StickBreakingOptions& options, KeyPass pass) {
  const AttentionProblem problem(q, k, v, range_of(options));
  const Tensor grad = with_adjacent_rows(grad_in);
  const Tensor grad_remainder = grad_remainder_in.to(at::kFloat).contiguous();
  const Tensor dq = empty_contiguous_like(q), dk = empty_contiguous_like(k), dv = empty_contiguous_like(v);
  const auto add = [&](const AttentionHead& head, int64_t first, int64_t last, float* dk_rows, float* dv_rows,
                       ScratchMemory<float>& memory) {
    kernels::stick_breaking_backward(
        {.packed = head.packed,
         .visibility = head.visibility,
         .first = first,
         .last = last,
         .q = head.q,
         .grad = rows_of(grad, head.batch, head.head),
         .dq = rows_of(dq, head.batch, head.head),
         .grad_remainder = numbers_of(grad_remainder, head),
         .query_origin = head.query_origin,
         .scale = static_cast<float>(score_scale(options.scale, problem.K)),
         .end_early = pass == KeyPass::kUntilNothingIsLeft,
         .dk = dk_rows,
         .dv = dv_rows,
         .scratch = memory.take(kernels::stick_breaking_backward_scratch(last, problem.K, problem.V))});
  };
  problem.gather_key_gradients(add, dk, dv);
  return {dq, dk, dv};
}

}  // namespace tamis::ops
