#include "tamis/ops/softmax_attention/softmax_attention_part.h"

#include <ATen/ATen.h>

#include <cmath>

#include "tamis/ops/checks.h"
#include "tamis/ops/softmax_attention/softmax_attention_blocked.h"
#include "tamis/ops/softmax_attention/softmax_attention_cpu.h"

namespace tamis::ops {

using at::Tensor;

namespace {

void check(const Tensor& q, const Tensor& k, const Tensor& v, const ScaledAttentionOptions& options) {
  constexpr const char* kName = "softmax_attention_part";
  check_attention(kName, q, k, v, options.range());
  TORCH_CHECK_VALUE(!options.window || !options.keys_before, kName, ": takes no window over keys before the queries");
  if (options.query_scale) {
    check_shape(kName, "query_scale", *options.query_scale, q.sym_sizes().slice(0, 3), "B, T_q and H of q");
  }
}

bool has_kernel(const Tensor& q) {
  return q.is_cpu() && attention_has_fused(q.scalar_type());
}

}  // namespace

SoftmaxAttentionPart softmax_attention_part(const Tensor& q, const Tensor& k, const Tensor& v,
                                            const ScaledAttentionOptions& options) {
  check(q, k, v, options);
  if (!has_kernel(q)) return softmax_attention_part_blocked(q, k, v, options);
  const auto [out, out_float32, statistics] = softmax_attention_cpu(q, k, v, options);
  return {out_float32.numel() > 0 ? out_float32 : out.to(at::kFloat), statistics};
}

SoftmaxAttentionPart merged(const SoftmaxAttentionPart& a, const SoftmaxAttentionPart& b) {
  // A part without keys has no score: what stands there may be far above the others'.
  const auto largest_of = [](const SoftmaxAttentionPart& part) {
    return part.statistics.select(3, 0).masked_fill(part.statistics.select(3, 1) == 0, -INFINITY);
  };
  const Tensor of_both = at::maximum(largest_of(a), largest_of(b));
  const Tensor largest = of_both.masked_fill(of_both == -INFINITY, 0);
  // Sums of exponentials relative to the largest score of both, [B, H, T_q].
  const auto sum_of = [&](const SoftmaxAttentionPart& part) {
    const Tensor inverse = part.statistics.select(3, 1);
    return ((part.statistics.select(3, 0) - largest).exp() / inverse).masked_fill(inverse == 0, 0);
  };
  const Tensor of_a = sum_of(a), of_b = sum_of(b), sum = of_a + of_b;
  const Tensor inverse = sum.reciprocal().masked_fill(sum == 0, 0);
  const auto share = [&](const Tensor& part) { return (part * inverse).transpose(1, 2).unsqueeze(3); };
  return {at::addcmul(a.out * share(of_a), b.out, share(of_b)), at::stack({largest, inverse}, 3)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> softmax_attention_part_backward(const Tensor& grad,
                                                                           const SoftmaxAttentionPart& whole,
                                                                           const Tensor& q, const Tensor& k,
                                                                           const Tensor& v,
                                                                           const ScaledAttentionOptions& options) {
  check(q, k, v, options);
  if (!has_kernel(q)) return softmax_attention_part_backward_blocked(grad, whole, q, k, v, options);
  return softmax_attention_backward_cpu(grad, q, k, v, whole.out, whole.statistics, options);
}

}  // namespace tamis::ops
