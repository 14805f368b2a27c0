#include "tamis/ops/sieve_attention/sieve_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include "tamis/ops/selection/testing.h"

namespace tamis::ops::testing::sieve_attention_test {
namespace {

struct SieveSubject {
  using Options = SieveAttentionOptions;
  static constexpr const char* kName = "sieve_attention";
  static constexpr bool kUsesKernels = true;
  static at::Tensor fused(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Options& options) {
    return sieve_attention(q, k, v, options);
  }
  static at::Tensor reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Options& options) {
    return reference::sieve_attention(q, k, v, options);
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(SieveAttention, SelectionTest, SieveSubject);

/// Stick-breaking over all keys j < i, one product at a time: [T, T] for scores [T, T].
at::Tensor stick_breaking_weights(const at::Tensor& z) {
  at::Tensor a = at::zeros_like(z);
  const auto scores = z.accessor<double, 2>();
  auto weights = a.accessor<double, 2>();
  for (int64_t i = 0; i < z.size(0); ++i) {
    double left = 1;
    for (int64_t j = i - 1; j >= 0; --j) {
      const double share = 1 / (1 + std::exp(-scores[i][j]));
      weights[i][j] = share * left;
      left *= 1 - share;
    }
  }
  return a;
}

TEST(SieveAttention, IsStickBreakingWhereEverythingIsSelected) {
  const Tensors in = normal_inputs({1, 150, 1, 16, 24}, 1);
  for (const auto& [alpha, spread] : {std::pair(1.0, 1.0), std::pair(1.5, 0.01), std::pair(2.0, 0.0005)}) {
    const Tensors spread_in = {in[0], in[1] * spread, in[2]};
    ASSERT_FALSE(
        (exact_excess(spread_in, SieveAttentionOptions{.alpha = alpha}).slice(2, 1).tril() < 0).any().item<bool>());
    const at::Tensor z = at::einsum("bihd,bjhd->bhij", {in[0].to(at::kDouble), spread_in[1].to(at::kDouble)}) / 4;
    const at::Tensor a = stick_breaking_weights(z.select(0, 0).select(0, 0).contiguous());
    const at::Tensor expected = at::einsum("ij,jv->iv", {a, in[2].select(0, 0).select(1, 0).to(at::kDouble)});
    const at::Tensor found = sieve_attention(spread_in[0], spread_in[1], spread_in[2], {.alpha = alpha});
    EXPECT_LE(largest(found.select(0, 0).select(1, 0) - expected), 2e-6) << "alpha " << alpha;
  }
}

TEST(SieveAttention, TheNewestSelectedKeyTakesFirst) {
  // Scores 2, -9 (rejected), 1.5 of the keys 0, 1, 2 for query 3, alpha 1.5.
  const at::Tensor q = at::ones({1, 4, 1, 1}), k = at::tensor({2.0f, -9.0f, 1.5f, 7.0f}).view({1, 4, 1, 1});
  const at::Tensor a = weights_of<SieveSubject>({q, k}, {.scale = 1.0}).select(2, 3).flatten();
  const auto sigmoid = [](double z) { return 1 / (1 + std::exp(-z)); };
  EXPECT_NEAR(a[2].item<double>(), sigmoid(1.5), 1e-7);
  EXPECT_NEAR(a[0].item<double>(), sigmoid(2) * (1 - sigmoid(1.5)), 1e-7);
  EXPECT_EQ(a[1].item<double>(), 0.0);
  EXPECT_EQ(a[3].item<double>(), 0.0);
}

TEST(SieveAttention, AnExhaustedStickLeavesNothing) {
  // Equal scores of 3: each key takes 95% of what is left. After 30 keys nothing is left in float32.
  Tensors in = normal_inputs({1, 200, 1, 4, 5}, 3);
  in[0].fill_(1);
  in[1].fill_(0.75);
  for_each_target([&] {
    const at::Tensor a = weights_of<SieveSubject>(in, {.scale = 1.0}).select(0, 0).select(0, 0);
    EXPECT_NEAR(a[199][198].item<double>(), 0.9525741, 1e-6);
    EXPECT_EQ(largest(a[199].slice(0, 0, 150)), 0.0);
    for (const at::Tensor& x : outputs_and_gradients(fused_with<SieveSubject>({.scale = 1.0}), in)) {
      EXPECT_TRUE(x.isfinite().all().item<bool>());
    }
  });
}

TEST(SieveAttention, IsCallableThroughTheDispatcher) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("tamis::sieve_attention", "");
  EXPECT_EQ(toString(op.schema()),
            "tamis::sieve_attention(Tensor q, Tensor k, Tensor v, *, float alpha=1.5, float? scale=None, "
            "bool strict=True, Tensor? document=None) -> Tensor");
  const Tensors in = normal_inputs({1, 20, 2, 4, 3}, 4);
  torch::jit::Stack stack = {in[0], in[1], in[2], 1.5, c10::IValue(), false, c10::IValue()};
  op.callBoxed(stack);
  EXPECT_TRUE(same_bits(stack.back().toTensor(), sieve_attention(in[0], in[1], in[2], {.strict = false})));
  const at::Tensor shape = sieve_attention(in[0].to(at::kMeta), in[1].to(at::kMeta), in[2].to(at::kMeta));
  EXPECT_EQ(shape.sizes(), at::IntArrayRef({1, 20, 2, 3}));
  EXPECT_TRUE(shape.is_meta());
}

}  // namespace
}  // namespace tamis::ops::testing::sieve_attention_test
