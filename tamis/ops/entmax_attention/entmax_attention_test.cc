#include "tamis/ops/entmax_attention/entmax_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include "tamis/ops/selection/testing.h"
#include "tamis/ops/softmax_attention/softmax_attention.h"

namespace tamis::ops::testing::entmax_attention_test {
namespace {

struct EntmaxSubject {
  using Options = EntmaxAttentionOptions;
  static constexpr const char* kName = "entmax_attention";
  static constexpr bool kUsesKernels = true;
  static at::Tensor fused(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Options& options) {
    return entmax_attention(q, k, v, options);
  }
  static at::Tensor reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Options& options) {
    return reference::entmax_attention(q, k, v, options);
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(EntmaxAttention, SelectionTest, EntmaxSubject);

TEST(EntmaxAttention, WeightsSumToOne) {
  for (const double alpha : {1.0, 1.05, 1.3, 1.5, 1.7, 2.0}) {
    for (const double spread : {0.05, 1.0, 5.0}) {
      const Tensors in = normal_inputs({1, 300, 2, 16, 1, -1, spread}, 1);
      for_each_target([&] {
        const at::Tensor p = weights_of<EntmaxSubject>(in, {.alpha = alpha, .strict = true});
        const at::Tensor sums = p.to(at::kDouble).sum(-1);
        EXPECT_EQ(largest(sums.select(-1, 0)), 0.0);  // the first query sees no key
        EXPECT_LE(largest(sums.slice(-1, 1) - 1), 3e-6) << "alpha " << alpha << ", spread " << spread;
      });
    }
  }
}

TEST(EntmaxAttention, AlphaTwoIsTheProjectionOnTheSimplex) {
  const Tensors in = normal_inputs({1, 90, 2, 16, 1}, 2);
  const at::Tensor p = weights_of<EntmaxSubject>(in, {.alpha = 2.0}).to(at::kDouble);
  const at::Tensor z = at::einsum("bihd,bjhd->bhij", {in[0].to(at::kDouble), in[1].to(at::kDouble)}) / 4;
  for (int64_t i = 0; i < 90; ++i) {
    const at::Tensor row = z.select(2, i).slice(-1, 0, i + 1);
    // Martins and Astudillo 2016, Algorithm 1.
    const at::Tensor sorted = std::get<0>(row.sort(-1, /*descending=*/true)), sums = sorted.cumsum(-1);
    const at::Tensor rank = at::arange(1, i + 2, at::kDouble);
    const at::Tensor size = (1 + rank * sorted > sums).sum(-1, /*keepdim=*/true);
    const at::Tensor tau = (sums.gather(-1, size - 1) - 1) / size;
    EXPECT_LE(largest(p.select(2, i).slice(-1, 0, i + 1) - (row - tau).clamp_min(0)), 1e-6) << "query " << i;
  }
}

TEST(EntmaxAttention, TheThresholdOfThreeKeysMadeByHand) {
  // Scores 1, 0.5 and -3 at alpha 1.5: x = 0.5, 0.25, -1.5; the last is rejected and tau solves
  // (0.5 - tau)^2 + (0.25 - tau)^2 = 1: tau = (1.5 - sqrt(7.75)) / 4.
  const at::Tensor q = at::ones({1, 3, 1, 1}), k = at::tensor({0.5f, -3.0f, 1.0f}).view({1, 3, 1, 1});
  const double tau = (1.5 - std::sqrt(7.75)) / 4;
  const at::Tensor p = weights_of<EntmaxSubject>({q, k}, {.scale = 1.0}).select(2, 2).flatten();
  EXPECT_NEAR(p[0].item<double>(), std::pow(0.25 - tau, 2), 1e-7);
  EXPECT_EQ(p[1].item<double>(), 0.0);
  EXPECT_NEAR(p[2].item<double>(), std::pow(0.5 - tau, 2), 1e-7);
}

TEST(EntmaxAttention, SoftmaxIsTheLimitOfAlphaOne) {
  const Tensors in = normal_inputs({1, 200, 2, 16, 24}, 3);
  const at::Tensor softmax = softmax_attention(in[0], in[1], in[2]);
  EXPECT_TRUE(same_bits(entmax_attention(in[0], in[1], in[2], {.alpha = 1.0}), softmax));
  for (const double alpha : {1.1, 1.01, 1.001}) {
    const double difference = largest(entmax_attention(in[0], in[1], in[2], {.alpha = alpha}) - softmax);
    EXPECT_LT(difference, 8 * (alpha - 1)) << "alpha " << alpha;
    EXPECT_GT(difference, 0.5 * (alpha - 1)) << "alpha " << alpha;
  }
}

TEST(EntmaxAttention, IsCallableThroughTheDispatcher) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("tamis::entmax_attention", "");
  EXPECT_EQ(toString(op.schema()),
            "tamis::entmax_attention(Tensor q, Tensor k, Tensor v, *, float alpha=1.5, float? scale=None, "
            "bool strict=False, Tensor? document=None) -> Tensor");
  const Tensors in = normal_inputs({1, 20, 2, 4, 3}, 4);
  torch::jit::Stack stack = {in[0], in[1], in[2], 1.5, c10::IValue(), true, c10::IValue()};
  op.callBoxed(stack);
  EXPECT_TRUE(same_bits(stack.back().toTensor(), entmax_attention(in[0], in[1], in[2], {.strict = true})));
  const at::Tensor shape = entmax_attention(in[0].to(at::kMeta), in[1].to(at::kMeta), in[2].to(at::kMeta));
  EXPECT_EQ(shape.sizes(), at::IntArrayRef({1, 20, 2, 3}));
  EXPECT_TRUE(shape.is_meta());
}

}  // namespace
}  // namespace tamis::ops::testing::entmax_attention_test
