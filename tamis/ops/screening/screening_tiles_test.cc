#include "tamis/ops/screening/screening_tiles.h"

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

constexpr int64_t kWidth = 11, kOutput = 7;  // D and E
constexpr size_t kOutputGradient = 3;        // after the output and the gradients of x and W_P

ProjectionLayout layout_of(bool gate) {
  return {kHeads, kKeyDim, kValueDim, gate};
}

/// x, W_P, W_O, s_w and s_r.
Tensors inputs_of(const Case& c) {
  return {testing::random_normal({c.B, c.T, kWidth}, 1).to(c.dtype),
          testing::random_normal({width_of(c.gate), kWidth}, 2).to(c.dtype),
          testing::random_normal({kOutput, kHeads * kValueDim}, 3).to(c.dtype), at::linspace(-1, c.widest, kHeads),
          at::ones({kHeads})};
}

Tensors tiles(const Tensors& in, const Case& c, Keep keep) {
  return {screening_tiles(in[0], {in[1], in[2], in[3], in[4]}, layout_of(c.gate), c.options, keep)};
}

/// Output and gradients are those of the two products and of screening() on the parts, bit for bit, whatever is kept;
/// the gradient of W_O up to rounding.
void expect_screening_of_the_parts(const Case& c) {
  const auto parts = [&](const Tensors& in) {
    const ScreeningProjections p = split_projections(at::linear(in[0], in[1]), layout_of(c.gate));
    ScreeningOptions with_gate = c.options;
    with_gate.gate = p.gate_BTHV;
    const Tensor u = screening(p.q_BTHK, p.k_BTHK, p.v_BTHV, in[3], in[4], with_gate);
    return Tensors{at::linear(u.flatten(2), in[2])};
  };
  const Tensors expected = testing::outputs_and_gradients(parts, inputs_of(c));
  for (const Keep keep : {Keep::kInputAndProjections, Keep::kInput}) {
    const Tensors found =
        testing::outputs_and_gradients([&](const Tensors& in) { return tiles(in, c, keep); }, inputs_of(c));
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(c.T <= 1 || c.B == 0 || testing::largest(expected[i]) > 0) << "tensor " << i;
      if (i == kOutputGradient) {
        const double ulp = testing::unit_in_last_place(c.dtype, testing::largest(expected[i]));
        EXPECT_LE(testing::largest(found[i] - expected[i]), 8 * ulp);
      } else {
        EXPECT_TRUE(testing::same_bits(found[i], expected[i])) << "tensor " << i;
      }
    }
  }
}

TEST(ScreeningTiles, IsScreeningOfTheParts) {
  expect_screening_of_the_parts({});
  expect_screening_of_the_parts({.gate = false});
  expect_screening_of_the_parts({.dtype = at::kBFloat16});
  expect_screening_of_the_parts({.dtype = at::kDouble});
  expect_screening_of_the_parts({.dtype = at::kHalf});  // no fused form: gradients are copied into their places
}

TEST(ScreeningTiles, IsScreeningOfThePartsInEveryShape) {
  expect_screening_of_the_parts({.B = 1, .T = 2500, .widest = 5});    // several stretches share keys
  expect_screening_of_the_parts({.B = 1, .T = 2500, .widest = 7.5});  // a window of 1,809 tokens
  expect_screening_of_the_parts({.widest = 95});                      // endless
  expect_screening_of_the_parts({.B = 0});
  expect_screening_of_the_parts({.T = 0});
  expect_screening_of_the_parts({.T = 1});
}

TEST(ScreeningTiles, TakesTheOptionsOfScreening) {
  expect_screening_of_the_parts({.options = {.expand_beyond = 20.0}});
  expect_screening_of_the_parts({.options = {.tanh_norm = false}});
  expect_screening_of_the_parts({.options = {.position = "none"}});
  const Tensor document = at::arange(70).floor_divide(13).expand({2, 70}).contiguous();
  expect_screening_of_the_parts({.options = {.document = document}});
}

TEST(ScreeningTiles, IsAsAccurateAsPlainTorch) {
  const auto reference = [](const Tensors& in) {
    const ScreeningProjections p = split_projections(at::linear(in[0], in[1]), layout_of(true));
    const Tensor u = reference::screening(p.q_BTHK, p.k_BTHK, p.v_BTHV, in[3], in[4], {.gate = p.gate_BTHV});
    return Tensors{at::linear(u.flatten(2), in[2])};
  };
  const auto fused = [](const Tensors& in) { return tiles(in, {}, Keep::kInput); };
  testing::expect_as_accurate_as_plain(fused, reference, inputs_of({}));
}

TEST(ScreeningTiles, TakesAnyStrides) {
  const Tensors dense = inputs_of({});
  Tensors strided;
  for (const Tensor& x : dense) strided.push_back(testing::strided(x));
  const auto gradients = [](const Tensors& in) {
    Tensors leaves;
    for (const Tensor& x : in) leaves.push_back(x.detach().requires_grad_());
    // The gradient of a sum is an expanded number: strides of zero.
    return torch::autograd::grad({tiles(leaves, {}, Keep::kInput)[0].sum()}, leaves);
  };
  const Tensors found = gradients(strided), expected = gradients(dense);
  for (size_t i = 0; i < found.size(); ++i) {
    const double scale = testing::largest(expected[i]);
    EXPECT_GT(scale, 0);
    EXPECT_LT(testing::largest(found[i] - expected[i]), 1e-5 * scale) << "input " << i;  // GEMMs of other strides
  }
}

TEST(ScreeningTiles, DifferentiatesWhatIsWanted) {
  const Tensors in = inputs_of({.B = 1, .T = 30});
  const auto gradients = [&](const std::vector<size_t>& wanted) {
    Tensors leaves, chosen;
    for (const Tensor& x : in) leaves.push_back(x.detach());
    for (const size_t i : wanted) chosen.push_back(leaves[i].requires_grad_());
    return torch::autograd::grad({tiles(leaves, {}, Keep::kInputAndProjections)[0].sum()}, chosen);
  };
  const Tensors all = gradients({0, 1, 2, 3, 4});
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_GT(testing::largest(all[i]), 0) << "input " << i;
    EXPECT_TRUE(testing::same_bits(gradients({i})[0], all[i])) << "input " << i;
  }
}

TEST(ScreeningTiles, BackwardMayRunTwice) {
  const Tensors in = inputs_of({});
  for (const Keep keep : {Keep::kInputAndProjections, Keep::kInput}) {
    const Tensor x = in[0].detach().requires_grad_();
    const Tensor sum = tiles({x, in[1], in[2], in[3], in[4]}, {}, keep)[0].sum();
    const Tensor first = torch::autograd::grad({sum}, {x}, {}, /*retain_graph=*/true)[0].clone();
    EXPECT_TRUE(testing::same_bits(torch::autograd::grad({sum}, {x})[0], first));
  }
}

TEST(ScreeningTiles, HasAFirstDerivativeOnly) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) {
    const Case c = {.dtype = dtype};
    Tensors in = inputs_of(c);
    in[0].requires_grad_();
    const Tensor out = tiles(in, c, Keep::kInputAndProjections)[0].sum();
    EXPECT_THAT([&] { torch::autograd::grad({out}, {in[0]}, {}, /*retain_graph=*/true, /*create_graph=*/true); },
                ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr("first derivative only")));
  }
}

TEST(ScreeningTiles, KeepsNoMoreThanItIsTold) {
  constexpr int64_t kTokens = 4000;
  const ProjectionLayout layout = {4, 16, 64, true};
  const int64_t D = 64, W = 4 * 2 * (16 + 64), U = 4 * 64;
  const Tensors in = {testing::random_normal({1, kTokens, D}, 1), testing::random_normal({W, D}, 2).requires_grad_(),
                      testing::random_normal({D, U}, 3), at::linspace(0, 5, 4), at::ones({4})};
  const auto kept_bytes = [&](Keep keep) {
    int64_t bytes = 0;
    testing::in_fresh_thread([&] {
      const testing::PeakAllocation tensors;
      const Tensor out = screening_tiles(in[0], {in[1], in[2], in[3], in[4]}, layout, {}, keep);
      bytes = tensors.current_bytes() - static_cast<int64_t>(out.nbytes());
    });
    return bytes;
  };
  constexpr int64_t kSmall = 100'000;
  EXPECT_LT(kept_bytes(Keep::kInput), kSmall);
  EXPECT_NEAR(static_cast<double>(kept_bytes(Keep::kInputAndProjections)), 4.0 * kTokens * W, kSmall);
}

TEST(ScreeningTiles, RefusesAnotherShape) {
  const Tensor ones = at::ones({kHeads});
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1, 5, 149}, {5, 150}}) {
    EXPECT_THAT([&] { projected_screening(at::zeros(sizes), layout_of(true), ones, ones); },
                ::testing::ThrowsMessage<c10::ValueError>(::testing::HasSubstr("[B, T, 150]")));
  }
  EXPECT_THAT(
      [&] {
        projected_screening(at::zeros({1, 5, 0}), {0, 6, 9, true}, ones, ones);
      },
      ::testing::ThrowsMessage<c10::ValueError>(::testing::HasSubstr("expected 1 head")));
  Tensors in = inputs_of({});
  in[1] = in[1].narrow(0, 1, width_of(true) - 1);
  EXPECT_THAT([&] { tiles(in, {}, Keep::kInput); },
              ::testing::ThrowsMessage<c10::ValueError>(::testing::HasSubstr("[B, T, 150]")));
}

}  // namespace
}  // namespace tamis::ops
