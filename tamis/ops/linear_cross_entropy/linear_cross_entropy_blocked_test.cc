// The blocked form of the vocabulary head and its loss, which other devices run, on the CPU or TAMIS_TEST_DEVICE.

#include "tamis/ops/linear_cross_entropy/linear_cross_entropy_blocked.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "tamis/ops/linear_cross_entropy/linear_cross_entropy.h"
#include "tamis/ops/testing.h"

namespace tamis::ops {
namespace {

using testing::Tensors;

struct BlockedHeadShape {
  int64_t T, N, D;
  double logit_scale = 1;
  std::optional<double> soft_cap;
};

const std::vector<BlockedHeadShape> kBlockedHeadShapes = {
    {0, 5, 3},
    {1, 1, 1},
    {63, 257, 16},
    {130, 1031, 33},
    {64, 300, 32, 1e4},
    {64, 300, 32, 4, 3.0},
    {400, 50257, 8, 1, 30.0},  // several tiles
};

/// x and weight.
Tensors blocked_head_inputs(const BlockedHeadShape& s, uint64_t seed, at::ScalarType dtype) {
  const double scale = s.logit_scale / std::sqrt(static_cast<double>(s.D));
  return {testing::random_normal({s.T, s.D}, seed).to(dtype),
          (testing::random_normal({s.N, s.D}, seed + 1) * scale).to(dtype)};
}

/// Every fifth target is ignored.
at::Tensor blocked_head_targets(const BlockedHeadShape& s) {
  const at::Tensor index = at::arange(s.T, at::kLong);
  return at::where(index % 5 == 4, -100, index * 7919 % s.N);
}

/// The loss of every token.
testing::Function blocked_head(const at::Tensor& target, const std::optional<double>& soft_cap) {
  const auto pass = [soft_cap, target = target.to(testing::test_device())](const Tensors& in) {
    const LinearCrossEntropyOptions options = {.reduction = "none", .soft_cap = soft_cap};
    return HeadPass{.x_TD = in[0], .weight_ND = in[1], .target_T = target, .loss_gradient_T = {}, .options = {options}};
  };
  return testing::differentiable({
      .forward = [=](const Tensors& in) -> Tensors { return {linear_cross_entropy_blocked(pass(in)).loss_T}; },
      .backward = [=](const Tensors& grad, const Tensors& in) -> Tensors {
        HeadPass with_gradients = pass(in);
        with_gradients.loss_gradient_T = grad[0];
        with_gradients.options.x_gradient = with_gradients.options.weight_gradient = true;
        const HeadPassResult result = linear_cross_entropy_blocked(with_gradients);
        return {result.x_TD, result.weight_ND};
      },
  });
}

testing::Function defined_head(const at::Tensor& target, const std::optional<double>& soft_cap) {
  return [=](const Tensors& in) -> Tensors {
    return {reference::linear_cross_entropy(in[0], in[1], target, {.reduction = "none", .soft_cap = soft_cap})};
  };
}

TEST(LinearCrossEntropyBlocked, IsAsAccurateAsPlainTorch) {
  for (const BlockedHeadShape& shape : kBlockedHeadShapes) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(::testing::Message() << "T " << shape.T << ", N " << shape.N << ", " << dtype);
      const at::Tensor target = blocked_head_targets(shape);
      testing::expect_as_accurate_as_plain_once(blocked_head(target, shape.soft_cap),
                                                defined_head(target, shape.soft_cap),
                                                {blocked_head_inputs(shape, 42, dtype)});
    }
  }
}

TEST(LinearCrossEntropyBlocked, InFloat64IsTheDefinition) {
  for (const BlockedHeadShape& shape : kBlockedHeadShapes) {
    const at::Tensor target = blocked_head_targets(shape);
    const Tensors in = blocked_head_inputs(shape, 43, at::kDouble);
    const Tensors found = testing::outputs_and_gradients(blocked_head(target, shape.soft_cap), in);
    const Tensors exact = testing::outputs_and_gradients(defined_head(target, shape.soft_cap), in);
    for (size_t i = 0; i < exact.size(); ++i) {
      EXPECT_LE(testing::largest(found[i] - exact[i]), 1e-12 * std::max(1.0, testing::largest(exact[i])))
          << "T " << shape.T << ", N " << shape.N << ", tensor " << i;
    }
  }
}

TEST(LinearCrossEntropyBlocked, MemoryDoesNotHoldTheLogits) {
  const auto peak = [](int64_t T) {
    const BlockedHeadShape shape{T, 50257, 8};
    return testing::peak_bytes_of([&] {
      testing::outputs_and_gradients(blocked_head(blocked_head_targets(shape), {}),
                                     blocked_head_inputs(shape, 44, at::kFloat));
    });
  };
  const int64_t at_500 = peak(500), at_2000 = peak(2000);
  EXPECT_LE(at_2000, 1.1 * static_cast<double>(at_500));
  EXPECT_LT(at_2000, 2000 * int64_t{50257});  // less than one byte per logit
}

}  // namespace
}  // namespace tamis::ops
