#include "tamis/ops/screening/screening_projected.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "tamis/ops/testing.h"

namespace tamis::ops {
namespace {

using at::Tensor;
using testing::Tensors;

constexpr int64_t kHeads = 5, kKeyDim = 6, kValueDim = 9;

int64_t width_of(bool gate) {
  return kHeads * (2 * kKeyDim + (gate ? 2 : 1) * kValueDim);
}

struct Case {
  at::ScalarType dtype = at::kFloat;
  bool gate = true;
  int64_t B = 2, T = 70;
  double widest = 4;  // s_w of the last head
  ScreeningOptions options = {};
};

/// Output and gradients of the projections, s_w and s_r are those of screening() on the parts, bit for bit.
void expect_screening_of_the_parts(const Case& c) {
  const ProjectionLayout layout = {kHeads, kKeyDim, kValueDim, c.gate};
  const Tensors in = {testing::random_normal({c.B, c.T, width_of(c.gate)}, 1).to(c.dtype),
                      at::linspace(-1, c.widest, kHeads), at::ones({kHeads})};
  const auto whole = [&](const Tensors& x) {
    return Tensors{projected_screening(x[0], layout, x[1], x[2], c.options)};
  };
  const auto parts = [&](const Tensors& x) {
    const ScreeningProjections p = split_projections(x[0], layout);
    ScreeningOptions with_gate = c.options;
    with_gate.gate = p.gate_BTHV;
    return Tensors{screening(p.q_BTHK, p.k_BTHK, p.v_BTHV, x[1], x[2], with_gate)};
  };
  const Tensors found = testing::outputs_and_gradients(whole, in);
  const Tensors expected = testing::outputs_and_gradients(parts, in);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(c.T <= 1 || c.B == 0 || testing::largest(expected[i]) > 0) << "tensor " << i;
    EXPECT_TRUE(testing::same_bits(found[i], expected[i])) << "tensor " << i;
  }
}

TEST(ProjectedScreening, IsScreeningOfTheParts) {
  expect_screening_of_the_parts({});
  expect_screening_of_the_parts({.gate = false});
  expect_screening_of_the_parts({.dtype = at::kBFloat16});
  expect_screening_of_the_parts({.dtype = at::kDouble});
  expect_screening_of_the_parts({.dtype = at::kHalf});  // no fused form: gradients are copied into their places
}

TEST(ProjectedScreening, IsScreeningOfThePartsInEveryShape) {
  expect_screening_of_the_parts({.B = 1, .T = 2500, .widest = 5});    // several stretches share keys
  expect_screening_of_the_parts({.B = 1, .T = 2500, .widest = 7.5});  // a window of 1,809 tokens
  expect_screening_of_the_parts({.widest = 95});                      // endless
  expect_screening_of_the_parts({.B = 0});
  expect_screening_of_the_parts({.T = 0});
  expect_screening_of_the_parts({.T = 1});
}

TEST(ProjectedScreening, TakesTheOptionsOfScreening) {
  expect_screening_of_the_parts({.options = {.expand_beyond = 20.0}});
  expect_screening_of_the_parts({.options = {.tanh_norm = false}});
  expect_screening_of_the_parts({.options = {.position = "none"}});
  const Tensor document = at::arange(70).floor_divide(13).expand({2, 70}).contiguous();
  expect_screening_of_the_parts({.options = {.document = document}});
}

TEST(ProjectedScreening, TakesAnyStrides) {
  const ProjectionLayout layout = {kHeads, kKeyDim, kValueDim, true};
  const Tensor dense = testing::random_normal({2, 40, width_of(true)}, 3);
  const Tensor s_w = at::linspace(-1, 4, kHeads), s_r = at::ones({kHeads});
  const auto gradients = [&](const Tensor& projected) {
    const Tensor leaf = projected.detach().requires_grad_();
    // The gradient of a sum is an expanded number: strides of zero.
    return torch::autograd::grad({projected_screening(leaf, layout, s_w, s_r).sum()}, {leaf})[0];
  };
  EXPECT_TRUE(testing::same_bits(gradients(testing::strided(dense)), gradients(dense)));
}

TEST(ProjectedScreening, DifferentiatesWhatIsWanted) {
  const ProjectionLayout layout = {kHeads, kKeyDim, kValueDim, true};
  const Tensor projected = testing::random_normal({1, 30, width_of(true)}, 4), s_r = at::ones({kHeads});
  const Tensor s_w = at::linspace(0, 3, kHeads).requires_grad_();
  const Tensor alone = torch::autograd::grad({projected_screening(projected, layout, s_w, s_r).sum()}, {s_w})[0];
  const Tensor leaf = projected.detach().requires_grad_();
  const auto both = torch::autograd::grad({projected_screening(leaf, layout, s_w, s_r).sum()}, {leaf, s_w});
  EXPECT_TRUE(testing::same_bits(alone, both[1]));
  EXPECT_FALSE(both[0].isnan().any().item().toBool());
}

TEST(ProjectedScreening, HasAFirstDerivativeOnly) {
  const ProjectionLayout layout = {kHeads, kKeyDim, kValueDim, true};
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) {
    const Tensor leaf = testing::random_normal({1, 5, width_of(true)}, 5).to(dtype).requires_grad_();
    const Tensor out = projected_screening(leaf, layout, at::ones({kHeads}), at::ones({kHeads})).sum();
    EXPECT_THAT([&] { torch::autograd::grad({out}, {leaf}, {}, /*retain_graph=*/true, /*create_graph=*/true); },
                ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr("first derivative only")));
  }
}

TEST(ProjectedScreening, RefusesAnotherShape) {
  const ProjectionLayout layout = {kHeads, kKeyDim, kValueDim, true};
  const Tensor ones = at::ones({kHeads});
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1, 5, 149}, {5, 150}}) {
    EXPECT_THAT([&] { projected_screening(at::zeros(sizes), layout, ones, ones); },
                ::testing::ThrowsMessage<c10::ValueError>(::testing::HasSubstr("[B, T, 150]")));
  }
  EXPECT_THAT(
      [&] {
        projected_screening(at::zeros({1, 5, 0}), {0, 6, 9, true}, ones, ones);
      },
      ::testing::ThrowsMessage<c10::ValueError>(::testing::HasSubstr("expected 1 head")));
}

}  // namespace
}  // namespace tamis::ops
