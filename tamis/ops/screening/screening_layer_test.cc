#include "tamis/ops/screening/screening_layer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "tamis/ops/linear.h"
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

Tensors layer(const Tensors& in, const Case& c, Keep keep) {
  return {screening_layer(in[0], {in[1], in[2], in[3], in[4]}, layout_of(c.gate), c.options, keep)};
}

/// Output and gradients are those of the two products and of screening() on the parts, bit for bit, whatever is kept;
/// the gradient of W_O up to rounding.
void expect_screening_of_the_parts(const Case& c) {
  const auto parts = [&](const Tensors& in) {
    const ScreeningProjections p = split_projections(ops::linear(in[0], in[1]), layout_of(c.gate));
    ScreeningOptions with_gate = c.options;
    with_gate.gate = p.gate_BTHV;
    const Tensor u = screening(p.q_BTHK, p.k_BTHK, p.v_BTHV, in[3], in[4], with_gate);
    return Tensors{ops::linear(u.flatten(2), in[2])};
  };
  const Tensors expected = testing::outputs_and_gradients(parts, inputs_of(c));
  for (const Keep keep : {Keep::kInputAndProjections, Keep::kInput}) {
    const Tensors found =
        testing::outputs_and_gradients([&](const Tensors& in) { return layer(in, c, keep); }, inputs_of(c));
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

TEST(ScreeningLayer, IsScreeningOfTheParts) {
  testing::for_each_backend(at::kFloat, [] {
    expect_screening_of_the_parts({});
    expect_screening_of_the_parts({.gate = false});
  });
  expect_screening_of_the_parts({.dtype = at::kBFloat16});
  expect_screening_of_the_parts({.dtype = at::kDouble});
  expect_screening_of_the_parts({.dtype = at::kHalf});  // no fused form: gradients are copied into the result
}

TEST(ScreeningLayer, IsScreeningOfThePartsInEveryShape) {
  expect_screening_of_the_parts({.B = 1, .T = 2500, .widest = 5});    // several chunks share keys
  expect_screening_of_the_parts({.B = 1, .T = 2500, .widest = 7.5});  // a window of 1,809 tokens
  expect_screening_of_the_parts({.widest = 95});                      // infinite
  expect_screening_of_the_parts({.B = 0});
  expect_screening_of_the_parts({.T = 0});
  expect_screening_of_the_parts({.T = 1});
}

TEST(ScreeningLayer, TakesTheOptionsOfScreening) {
  expect_screening_of_the_parts({.options = {{.expand_beyond = 20.0}}});
  expect_screening_of_the_parts({.options = {{.tanh_norm = false}}});
  expect_screening_of_the_parts({.options = {{.position = "none"}}});
  const Tensor document = at::arange(70).floor_divide(13).expand({2, 70}).contiguous();
  expect_screening_of_the_parts({.options = {.document = document}});
}

void expect_as_accurate_as_plain(const Case& c) {
  const auto reference = [&](const Tensors& in) {
    const ScreeningProjections p = split_projections(at::linear(in[0], in[1]), layout_of(c.gate));
    ScreeningOptions options = c.options;
    options.gate = p.gate_BTHV;
    const Tensor u = reference::screening(p.q_BTHK, p.k_BTHK, p.v_BTHV, in[3], in[4], options);
    return Tensors{at::linear(u.flatten(2), in[2])};
  };
  const auto fused = [&](const Tensors& in) { return layer(in, c, Keep::kInput); };
  testing::expect_as_accurate_as_plain(fused, reference, inputs_of(c));
}

TEST(ScreeningLayer, IsAsAccurateAsPlainTorch) {
  testing::for_each_backend(at::kFloat, [] { expect_as_accurate_as_plain({}); });
  expect_as_accurate_as_plain({.gate = false});
  expect_as_accurate_as_plain({.options = {{.tanh_norm = false}}});
  expect_as_accurate_as_plain({.gate = false, .options = {{.tanh_norm = false}}});
}

/// The result that the backward pass computes again, compared with that of the forward pass. It is rounded after sums
/// of other lengths, so in bfloat16 it may be a neighbouring number.
TEST(ScreeningLayer, TheResultIsMadeAgainInEveryDtype) {
  for (const bool gate : {true, false}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      const Tensor projected = testing::random_normal({2, 300, width_of(gate)}, 5).to(dtype);
      const Tensor s_w = at::linspace(-1, 6, kHeads), s_r = at::ones({kHeads});
      const ScreeningProjections p = split_projections(projected, layout_of(gate));
      testing::for_each_target([&] {
        const Tensor out = screening(p.q_BTHK, p.k_BTHK, p.v_BTHV, s_w, s_r, {.gate = p.gate_BTHV});
        const Tensor gradient = at::empty_like(projected), again = at::ones_like(out);
        screening_backward_into(again, p, s_w, s_r, {}, split_projections(gradient, layout_of(gate)), again);
        const Tensor wide = out.to(at::kDouble), error = (again.to(at::kDouble) - wide).abs();
        const double near = dtype == at::kBFloat16 ? 1.0 / 128 : dtype == at::kHalf ? 1e-3 : 2e-6;
        EXPECT_GT(testing::largest(wide), 0.1);
        EXPECT_TRUE(error.le(near * wide.abs() + 1e-6).all().item().toBool()) << dtype << ", gate " << gate;
      });
    }
  }
}

TEST(ScreeningLayer, BitsDoNotDependOnThreads) {
  const Case c = {.B = 1, .T = 3000, .widest = 7};
  const auto found = [&](int threads) {
    const testing::Threads set(threads);
    return testing::outputs_and_gradients([&](const Tensors& in) { return layer(in, c, Keep::kInput); }, inputs_of(c));
  };
  const Tensors one = found(1), four = found(4);
  for (size_t i = 0; i < one.size(); ++i) {
    const bool product_of_torch = i >= 1 && i <= kOutputGradient;  // gradients of x, W_P and W_O
    if (product_of_torch) {
      EXPECT_LT(testing::largest(one[i] - four[i]), 1e-5 * testing::largest(one[i])) << "tensor " << i;
    } else {
      EXPECT_TRUE(testing::same_bits(one[i], four[i])) << "tensor " << i;
    }
  }
}

TEST(ScreeningLayer, TakesAnyStrides) {
  const Tensors dense = inputs_of({});
  Tensors strided;
  for (const Tensor& x : dense) strided.push_back(testing::strided(x));
  const auto gradients = [](const Tensors& in) {
    Tensors leaves;
    for (const Tensor& x : in) leaves.push_back(x.detach().requires_grad_());
    // The gradient of a sum is an expanded number: strides of zero.
    return torch::autograd::grad({layer(leaves, {}, Keep::kInput)[0].sum()}, leaves);
  };
  const Tensors found = gradients(strided), expected = gradients(dense);
  for (size_t i = 0; i < found.size(); ++i) {
    const double scale = testing::largest(expected[i]);
    EXPECT_GT(scale, 0);
    // Up to rounding, because products of matrices with other strides are computed differently.
    EXPECT_LT(testing::largest(found[i] - expected[i]), 1e-5 * scale) << "input " << i;
  }
}

TEST(ScreeningLayer, DifferentiatesWhatIsWanted) {
  const Tensors in = inputs_of({.B = 1, .T = 30});
  const auto gradients = [&](const std::vector<size_t>& wanted) {
    Tensors leaves, chosen;
    for (const Tensor& x : in) leaves.push_back(x.detach());
    for (const size_t i : wanted) chosen.push_back(leaves[i].requires_grad_());
    return torch::autograd::grad({layer(leaves, {}, Keep::kInputAndProjections)[0].sum()}, chosen);
  };
  const Tensors all = gradients({0, 1, 2, 3, 4});
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_GT(testing::largest(all[i]), 0) << "input " << i;
    EXPECT_TRUE(testing::same_bits(gradients({i})[0], all[i])) << "input " << i;
  }
}

TEST(ScreeningLayer, BackwardMayRunTwice) {
  const Tensors in = inputs_of({});
  for (const Keep keep : {Keep::kInputAndProjections, Keep::kInput}) {
    Tensors leaves;
    for (const Tensor& x : in) leaves.push_back(x.detach().requires_grad_());
    const Tensor sum = layer(leaves, {}, keep)[0].sum();
    Tensors first;
    for (const Tensor& x : torch::autograd::grad({sum}, leaves, {}, /*retain_graph=*/true)) first.push_back(x.clone());
    EXPECT_TRUE(testing::same_bits(torch::autograd::grad({sum}, leaves), first));
  }
}

TEST(ScreeningLayer, HasAFirstDerivativeOnly) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) {
    const Case c = {.dtype = dtype};
    Tensors in = inputs_of(c);
    in[0].requires_grad_();
    const Tensor out = layer(in, c, Keep::kInputAndProjections)[0].sum();
    EXPECT_THAT([&] { torch::autograd::grad({out}, {in[0]}, {}, /*retain_graph=*/true, /*create_graph=*/true); },
                ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr("first derivative only")));
  }
}

TEST(ScreeningLayer, KeepsNoMoreThanItIsTold) {
  constexpr int64_t kTokens = 4000;
  const ProjectionLayout layout = {4, 16, 64, true};
  const int64_t D = 64, W = 4 * 2 * (16 + 64), U = 4 * 64;
  Tensors in = {testing::random_normal({1, kTokens, D}, 1), testing::random_normal({W, D}, 2),
                testing::random_normal({D, U}, 3), at::linspace(0, 5, 4), at::ones({4})};
  for (Tensor& x : in) x.requires_grad_();
  const auto kept_bytes = [&](Keep keep) {
    int64_t bytes = 0;
    testing::in_fresh_thread([&] {
      const testing::PeakAllocation tensors;
      const Tensor out = screening_layer(in[0], {in[1], in[2], in[3], in[4]}, layout, {}, keep);
      bytes = tensors.current_bytes() - static_cast<int64_t>(out.nbytes());
    });
    return bytes;
  };
  constexpr int64_t kSmall = 100'000;
  EXPECT_LT(kept_bytes(Keep::kInput), kSmall);
  EXPECT_NEAR(static_cast<double>(kept_bytes(Keep::kInputAndProjections)), 4.0 * kTokens * W, kSmall);
}

TEST(ScreeningLayer, RefusesAnotherShape) {
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1, 5, 149}, {5, 150}}) {
    EXPECT_THAT([&] { split_projections(at::zeros(sizes), layout_of(true)); },
                ::testing::ThrowsMessage<c10::ValueError>(::testing::HasSubstr("[B, T, 150]")));
  }
  EXPECT_THAT(
      [&] {
        split_projections(at::zeros({1, 5, 0}), {0, 6, 9, true});
      },
      ::testing::ThrowsMessage<c10::ValueError>(::testing::HasSubstr("expected 1 head")));
  const auto expect_refused = [](size_t input, const Tensor& bad, const std::string& text) {
    Tensors in = inputs_of({});
    in[input] = bad;
    EXPECT_THAT([&] { layer(in, {}, Keep::kInput); },
                ::testing::ThrowsMessage<c10::ValueError>(::testing::HasSubstr(text)));
  };
  expect_refused(0, at::zeros({70, kWidth}), "x must have the shape [B, T, D], but has [70, 11]");
  expect_refused(0, at::zeros({2, 70, kWidth + 1}), "projection must have the shape [150, 12], but has [150, 11]");
  expect_refused(1, at::zeros({149, kWidth}), "projection must have the shape [150, 11], but has [149, 11]");
  expect_refused(1, at::zeros({150, kWidth}, at::kDouble), "projection must have the dtype and device of x, Float");
  expect_refused(2, at::zeros({45}), "output must have the shape [E, H V], but has [45]");
  expect_refused(2, at::zeros({kOutput, 44}), "output must have the shape [7, 45], but has [7, 44]");
  expect_refused(3, at::zeros({kHeads - 1}), "s_w");
}

}  // namespace
}  // namespace tamis::ops
