// The blocked form of entmax attention and Sieve, which other devices run, on the CPU or TAMIS_TEST_DEVICE.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tamis/ops/entmax_attention/entmax_attention.h"
#include "tamis/ops/selection/selection.h"
#include "tamis/ops/selection/testing.h"
#include "tamis/ops/sieve_attention/sieve_attention.h"
#include "tamis/ops/testing.h"

namespace tamis::ops::testing {
namespace {

/// The blocked form as a Subject (testing.h); a mechanism adds its reference.
template <typename OptionsType, const SelectedWeights& (*kWeights)()>
struct BlockedSelection {
  using Options = OptionsType;
  static constexpr bool kUsesKernels = false;
  static at::Tensor fused(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Options& options) {
    const Selection selection = selection_of(on_test_device(options), q.size(3));
    const Form form{.forward = [=](const Tensors& in) -> Tensors {
                      return {selection_blocked(kWeights(), selection, in[0], in[1], in[2])};
                    },
                    .backward = [=](const Tensors& grad, const Tensors& in) -> Tensors {
                      const auto [dq, dk, dv] =
                          selection_backward_blocked(kWeights(), selection, grad[0], in[0], in[1], in[2]);
                      return {dq, dk, dv};
                    }};
    return differentiable(form)({q, k, v})[0];
  }
};

struct BlockedEntmax : BlockedSelection<EntmaxAttentionOptions, &entmax_weights> {
  static at::Tensor reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Options& options) {
    return reference::entmax_attention(q, k, v, options);
  }
};

struct BlockedSieve : BlockedSelection<SieveAttentionOptions, &sieve_weights> {
  static at::Tensor reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Options& options) {
    return reference::sieve_attention(q, k, v, options);
  }
};

template <class Subject>
class BlockedSelectionTest : public ::testing::Test {};

using BlockedSelections = ::testing::Types<BlockedEntmax, BlockedSieve>;
TYPED_TEST_SUITE(BlockedSelectionTest, BlockedSelections);

TYPED_TEST(BlockedSelectionTest, IsAsAccurateAsPlainTorch) {
  for (const SelectionShape& shape : kSelectionShapes) {
    for (const bool strict : {false, true}) expect_accurate<TypeParam>(shape, {.alpha = 1.5, .strict = strict}, 42);
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      expect_accurate<TypeParam>(shape, {.alpha = 1.5, .strict = true}, 43, dtype);
    }
  }
}

TYPED_TEST(BlockedSelectionTest, OptionsAreAsAccurateAsPlainTorch) {
  const SelectionShape shape = {2, 130, 2, 16, 24};
  for (const double alpha : {1.0, 1.1, 1.25, 2.0}) {
    for (const bool strict : {false, true}) expect_accurate<TypeParam>(shape, {.alpha = alpha, .strict = strict}, 44);
  }
  const at::Tensor document = at::arange(130).floor_divide(37).expand({2, 130}).contiguous();
  for (const bool strict : {false, true}) {
    expect_accurate<TypeParam>(shape, {.scale = -0.1, .strict = strict}, 47);
    expect_accurate<TypeParam>(shape, {.strict = strict, .document = document}, 48);
    expect_accurate<TypeParam>({2, 130, 2, 16, 24, 70}, {.strict = strict, .document = document}, 49);
  }
}

TYPED_TEST(BlockedSelectionTest, InFloat64IsTheDefinition) {
  for (const double alpha : {1.0, 1.3, 1.5, 2.0}) {
    for (const SelectionShape& shape : kSelectionShapes) {
      const typename TypeParam::Options options{.alpha = alpha, .strict = true};
      Tensors in = clear_inputs(shape, options, 50, at::kFloat, /*margin=*/1e-9);
      for (at::Tensor& x : in) x = x.to(at::kDouble);
      const Tensors found = outputs_and_gradients(fused_with<TypeParam>(options), in);
      const Tensors exact = outputs_and_gradients(reference_with<TypeParam>(options), in);
      for (size_t i = 0; i < exact.size(); ++i) {
        EXPECT_LE(largest(found[i] - exact[i]), 1e-9 * std::max(1.0, largest(exact[i])))
            << "alpha " << alpha << ", T " << shape.T << ", tensor " << i;
      }
    }
  }
}

TYPED_TEST(BlockedSelectionTest, SelectsWhatIsAboveTheExactThreshold) {
  for (const double alpha : {1.25, 1.5, 2.0}) {
    for (const double slope : {0.0, -0.01, 0.01}) {  // of the scores by position
      Tensors in = normal_inputs({1, 400, 2, 16, 1}, 51);
      in[0].select(3, 0).fill_(4);
      in[1].select(3, 0).copy_((at::arange(400) * slope - 6).view({1, 400, 1}));
      expect_exact_support<TypeParam>(in, {.alpha = alpha, .strict = true});
    }
  }
}

TYPED_TEST(BlockedSelectionTest, QueriesThatSeeNothingAreZeroWithoutGradient) {
  for (const double alpha : {1.0, 1.5, 2.0}) {
    const typename TypeParam::Options options{
        .alpha = alpha, .strict = true, .document = at::tensor({7, 7, 7, 2, 2, 7}).view({1, 6})};
    const Tensors found = outputs_and_gradients(fused_with<TypeParam>(options), normal_inputs({1, 6, 2, 4, 3}, 59));
    for (const at::Tensor& x : found) EXPECT_TRUE(x.isfinite().all().template item<bool>());
    for (const int64_t row : {0, 3}) {
      EXPECT_EQ(largest(found[0].select(1, row)), 0.0);
      EXPECT_EQ(largest(found[1].select(1, row)), 0.0);
    }
    EXPECT_GT(largest(found[0].select(1, 5)), 0.0);
  }
}

TYPED_TEST(BlockedSelectionTest, HugeScoresStayFinite) {
  for (const double alpha : {1.0, 1.3, 1.5, 2.0}) {
    Tensors in = normal_inputs({1, 130, 2, 16, 24}, 60);
    in[0] *= 1e4;
    for (const at::Tensor& x : outputs_and_gradients(fused_with<TypeParam>({.alpha = alpha, .strict = true}), in)) {
      EXPECT_TRUE(x.isfinite().all().template item<bool>()) << "alpha " << alpha;
    }
  }
}

TYPED_TEST(BlockedSelectionTest, TakesStridedInputs) {
  Tensors in = normal_inputs({2, 130, 2, 16, 24, 70}, 61);
  const Tensors expected = outputs_and_gradients(fused_with<TypeParam>({}), in);
  for (at::Tensor& x : in) x = strided(x);
  EXPECT_TRUE(same_bits(expected, outputs_and_gradients(fused_with<TypeParam>({}), in)));
}

TYPED_TEST(BlockedSelectionTest, EmptyBatchAndNoQueries) {
  EXPECT_EQ(outputs_and_gradients(fused_with<TypeParam>({}), normal_inputs({0, 5, 2, 4, 3}, 62))[0].numel(), 0);
  const Tensors none = outputs_and_gradients(fused_with<TypeParam>({}), normal_inputs({2, 5, 1, 4, 3, 0}, 62));
  EXPECT_EQ(largest(none[2]), 0.0);
  EXPECT_EQ(largest(none[3]), 0.0);
}

TYPED_TEST(BlockedSelectionTest, MemoryIsLinear) {
  for (const bool documents : {false, true}) {
    SCOPED_TRACE(documents ? "documents" : "one document");
    expect_linear_memory([&](int64_t T) {
      typename TypeParam::Options options;
      if (documents) options.document = at::arange(T).floor_divide(T / 3).view({1, T});
      outputs_and_gradients(fused_with<TypeParam>(options), normal_inputs({1, T, 1, 8, 8}, 63));
    });
  }
}

}  // namespace
}  // namespace tamis::ops::testing
