#include "tamis/ops/linear_cross_entropy/linear_cross_entropy.h"

#include <cmath>
#include <limits>
#include <optional>
#include <ostream>
#include <string>

#include "tamis/ops/linear_cross_entropy/linear_cross_entropy_bfloat16.h"
#include "tamis/ops/testing.h"

namespace tamis::ops::linear_cross_entropy_test {
namespace {

using namespace testing;  // NOLINT
using at::Tensor;
using Options = LinearCrossEntropyOptions;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Shape {
  int64_t T, N, D;
  double logit_scale = 1;
  at::ScalarType dtype = at::kFloat;
  std::string reduction = "mean";
  std::optional<double> soft_cap;

  friend void PrintTo(const Shape& s, std::ostream* out) {
    *out << "T " << s.T << " N " << s.N << " D " << s.D << " logits " << s.logit_scale << " " << s.dtype << " "
         << s.reduction << (s.soft_cap ? " capped" : "");
  }
};

struct Case {
  Tensors in;  // x, weight
  Tensor target;
};

/// Standard normal logits times the scale; every fifth target is ignored.
Case random_case(const Shape& s) {
  const double scale = s.logit_scale / std::sqrt(static_cast<double>(s.D));
  Case c{{random_normal({s.T, s.D}, 1).to(s.dtype), (random_normal({s.N, s.D}, 2) * scale).to(s.dtype)}, {}};
  c.target = at::empty({s.T}, at::kLong);
  Random random{3};
  for (int64_t t = 0; t < s.T; ++t) {
    c.target.data_ptr<int64_t>()[t] = t % 5 == 4 ? -100 : static_cast<int64_t>(random.below(s.N));
  }
  return c;
}

Function fused(const Tensor& target, const Options& options) {
  return [=](const Tensors& in) { return Tensors{linear_cross_entropy(in[0], in[1], target, options)}; };
}
Function plain(const Tensor& target, const Options& options) {
  return [=](const Tensors& in) { return Tensors{reference::linear_cross_entropy(in[0], in[1], target, options)}; };
}

class LinearCrossEntropyTest : public ::testing::TestWithParam<Shape> {};

TEST_P(LinearCrossEntropyTest, IsAsAccurateAsPlainTorch) {
  const Case c = random_case(GetParam());
  const Options options{.reduction = GetParam().reduction, .soft_cap = GetParam().soft_cap};
  for_each_backend(at::kFloat,
                   [&] { expect_as_accurate_as_plain(fused(c.target, options), plain(c.target, options), c.in); });
}

TEST_P(LinearCrossEntropyTest, SameBitsForAnyNumberOfThreads) {
  const Case c = random_case(GetParam());
  const Function function = fused(c.target, {.reduction = GetParam().reduction, .soft_cap = GetParam().soft_cap});
  for_each_backend(at::kFloat, [&] {
    Tensors first;
    for (const int threads : {1, 2, 3, 4, 1}) {
      const Threads guard(threads);
      const Tensors now = outputs_and_gradients(function, c.in);
      if (first.empty()) first = now;
      EXPECT_TRUE(same_bits(now, first)) << threads << " threads";
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, LinearCrossEntropyTest,
    ::testing::Values(Shape{.T = 1, .N = 1, .D = 1},                       // one entry: loss and gradients zero
                      Shape{.T = 3, .N = 2, .D = 1, .reduction = "none"},  //
                      Shape{.T = 63, .N = 257, .D = 16},  // vocabulary of bytes; T is no multiple of the lanes
                      Shape{.T = 130, .N = 1031, .D = 33, .reduction = "sum"},  // odd sizes, a last block of 7
                      Shape{.T = 130, .N = 1031, .D = 33, .reduction = "none"},
                      Shape{.T = 40, .N = 5000, .D = 600, .logit_scale = 10},  // narrow blocks of a wide head
                      Shape{.T = 64, .N = 300, .D = 32, .logit_scale = 1e4},   // exp(logit) would overflow
                      Shape{.T = 300, .N = 50257, .D = 8},                     // more than one tile of tokens
                      Shape{.T = 63, .N = 257, .D = 16, .logit_scale = 4, .soft_cap = 3},
                      Shape{.T = 130, .N = 1031, .D = 33, .logit_scale = 30, .reduction = "none", .soft_cap = 30},
                      Shape{.T = 300, .N = 50257, .D = 8, .reduction = "sum", .soft_cap = 30},
                      Shape{.T = 64, .N = 300, .D = 32, .logit_scale = 200, .soft_cap = 30},  // most logits at the cap
                      Shape{.T = 130, .N = 1031, .D = 34, .logit_scale = 30, .dtype = at::kBFloat16, .soft_cap = 30},
                      Shape{.T = 63, .N = 257, .D = 16, .dtype = at::kBFloat16},
                      Shape{.T = 130, .N = 1031, .D = 33, .dtype = at::kBFloat16},  // odd width: in float32
                      Shape{.T = 130, .N = 1031, .D = 34, .dtype = at::kBFloat16, .reduction = "none"},
                      Shape{.T = 1100, .N = 1031, .D = 34, .dtype = at::kBFloat16},  // several tiles
                      Shape{.T = 64, .N = 300, .D = 32, .logit_scale = 1e4, .dtype = at::kBFloat16},
                      Shape{.T = 40, .N = 5000, .D = 600, .logit_scale = 10, .dtype = at::kBFloat16},
                      Shape{.T = 300, .N = 50257, .D = 8, .dtype = at::kBFloat16, .reduction = "sum"}));

TEST(LinearCrossEntropy, GradientsMatchFiniteDifferences) {
  Case c = random_case({.T = 6, .N = 9, .D = 4, .dtype = at::kDouble});
  for (const char* reduction : {"mean", "sum", "none"}) {
    SCOPED_TRACE(reduction);
    for_each_target([&] { expect_gradients(fused(c.target, {.reduction = reduction}), c.in); });
  }
}

TEST(LinearCrossEntropy, GradientsOfCappedLogitsMatchFiniteDifferences) {
  const Case c = random_case({.T = 6, .N = 9, .D = 4, .logit_scale = 3, .dtype = at::kDouble});
  for (const char* reduction : {"mean", "sum", "none"}) {
    SCOPED_TRACE(reduction);
    for_each_target([&] { expect_gradients(fused(c.target, {.reduction = reduction, .soft_cap = 2.5}), c.in); });
  }
}

TEST(LinearCrossEntropy, ASoftCapBoundsTheLogits) {
  const Tensor x = at::full({1, 1}, 1e6), weight = at::tensor({1.0f, -1.0f}).unsqueeze(1);
  const Tensor loss = linear_cross_entropy(x, weight, at::ones({1}, at::kLong), {.soft_cap = 4});
  EXPECT_NEAR(loss.item().toDouble(), 8 + std::log1p(std::exp(-8.0)), 1e-6);
  const Case c = random_case({.T = 20, .N = 50, .D = 6});
  const Tensor wide = linear_cross_entropy(c.in[0], c.in[1], c.target, {.soft_cap = 1e5});
  EXPECT_NEAR(wide.item().toDouble(), linear_cross_entropy(c.in[0], c.in[1], c.target).item().toDouble(), 1e-5);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const Tensor poisoned = at::full({1, 1}, kNan, dtype);
    for_each_target([&] {
      const Tensor lost = linear_cross_entropy(poisoned, weight.to(dtype), at::ones({1}, at::kLong), {.soft_cap = 4});
      EXPECT_TRUE(std::isnan(lost.item().toDouble()));
    });
  }
}

TEST(LinearCrossEntropy, UninitialisedMemoryIsNeverRead) {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  at::globalContext().setDeterministicFillUninitializedMemory(true);  // at::empty fills its memory with NaN
  const Case c = random_case({.T = 300, .N = 50257, .D = 8});
  const Tensors found = outputs_and_gradients(fused(c.target, {}), c.in);
  at::globalContext().setDeterministicAlgorithms(false, false);
  for (const Tensor& tensor : found) EXPECT_TRUE(tensor.isfinite().all().item().toBool());
}

TEST(LinearCrossEntropy, StridesAndLeadingDimensionsDoNotMatter) {
  const Case c = random_case({.T = 24, .N = 70, .D = 10});
  for (const char* reduction : {"mean", "none"}) {
    const Options options{.reduction = reduction};
    const Tensor expected = linear_cross_entropy(c.in[0], c.in[1], c.target, options);
    const Tensor found = linear_cross_entropy(strided(c.in[0].view({2, 3, 4, 10})), strided(c.in[1]),
                                              strided(c.target.view({2, 3, 4})), options);
    EXPECT_LE(largest(found.flatten() - expected.flatten()), 1e-6 * largest(expected));
    EXPECT_EQ(found.dim(), options.reduction == "none" ? 3 : 0);

    const auto function = [&](const Tensors& in) {
      return Tensors{linear_cross_entropy(in[0].transpose(0, 1), in[1].t(), c.target, options)};
    };
    const Tensors straight = outputs_and_gradients(fused(c.target, options), c.in);
    const Tensors transposed = outputs_and_gradients(function, {c.in[0].t().contiguous(), c.in[1].t().contiguous()});
    for (size_t i = 1; i < straight.size(); ++i) {
      EXPECT_LE(largest(straight[i] - transposed[i].t()), 1e-6 * largest(straight[i])) << "gradient " << i;
    }
  }
  const Tensor one_token = linear_cross_entropy(c.in[0][0], c.in[1], c.target[0], {});
  EXPECT_TRUE(same_bits(one_token, linear_cross_entropy(c.in[0].slice(0, 0, 1), c.in[1], c.target.slice(0, 0, 1), {})));
}

TEST(LinearCrossEntropy, StridesDoNotMatterInBFloat16) {
  const Case c = random_case({.T = 40, .N = 130, .D = 10, .dtype = at::kBFloat16});
  const auto function = [&](const Tensors& in) {
    return Tensors{linear_cross_entropy(in[0].t(), in[1].t(), strided(c.target))};
  };
  const Tensors straight = outputs_and_gradients(fused(c.target, {}), c.in);
  const Tensors transposed = outputs_and_gradients(function, {c.in[0].t().contiguous(), c.in[1].t().contiguous()});
  EXPECT_TRUE(same_bits({straight[0], straight[1].t(), straight[2].t()}, transposed));
}

TEST(LinearCrossEntropy, NothingCountedIsZero) {
  const Tensor weight = random_normal({7, 4}, 1);
  for (const int64_t tokens : {0, 5}) {
    const Tensor x = at::full({tokens, 4}, kNan);  // an ignored token is not even read
    const Tensor target = at::full({tokens}, -100, at::kLong);
    for (const char* reduction : {"mean", "sum", "none"}) {
      const Tensors found = outputs_and_gradients(fused(target, {.reduction = reduction}), {x, weight});
      for (const Tensor& tensor : found) EXPECT_EQ(largest(tensor), 0) << tokens << " " << reduction;
      EXPECT_EQ(found[0].numel(), std::string(reduction) == "none" ? tokens : 1);
    }
  }
}

TEST(LinearCrossEntropy, IgnoredTokensAreNotRead) {
  const Case c = random_case({.T = 20, .N = 50, .D = 6});
  const Tensor counted = at::nonzero(c.target != -100).squeeze(1);
  Tensor poisoned = c.in[0].clone();
  poisoned.masked_fill_((c.target == -100).unsqueeze(1), kNan);
  const Tensors all = outputs_and_gradients(fused(c.target, {}), {poisoned, c.in[1]});
  const Tensors few =
      outputs_and_gradients(fused(c.target.index_select(0, counted), {}), {c.in[0].index_select(0, counted), c.in[1]});
  EXPECT_TRUE(same_bits(all[0], few[0]));
  EXPECT_TRUE(same_bits(all[1].index_select(0, counted), few[1]));
  EXPECT_TRUE(same_bits(all[2], few[2]));

  // ignore_index may be an entry of the vocabulary.
  const Tensor renamed = at::where(c.target == -100, 3, c.target);
  const Tensor kept = at::where(c.target == 3, -100, c.target);
  EXPECT_TRUE(same_bits(linear_cross_entropy(poisoned, c.in[1], renamed, {.ignore_index = 3}),
                        linear_cross_entropy(c.in[0], c.in[1], kept, {})));
}

TEST(LinearCrossEntropy, ANonFiniteTokenShowsInTheLoss) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const Case c = random_case({.T = 8, .N = 100, .D = 6, .dtype = dtype});
    for (const double poison : {kNan, HUGE_VAL}) {
      Tensor x = c.in[0].clone();
      x[2].fill_(poison);
      for_each_target([&] {
        const Tensor losses = linear_cross_entropy(x, c.in[1], c.target, {.reduction = "none"});
        EXPECT_FALSE(std::isfinite(losses[2].item().toDouble()));
        EXPECT_TRUE(losses.slice(0, 3).isfinite().all().item().toBool());
      });
    }
  }
}

TEST(LinearCrossEntropy, MeanIsSumOverCounted) {
  const Case c = random_case({.T = 50, .N = 30, .D = 6, .dtype = at::kDouble});
  const double sum = linear_cross_entropy(c.in[0], c.in[1], c.target, {.reduction = "sum"}).item().toDouble();
  const double mean = linear_cross_entropy(c.in[0], c.in[1], c.target, {}).item().toDouble();
  EXPECT_NEAR(mean, sum / 40, 1e-12);
  const Tensor flat = linear_cross_entropy(at::zeros({3, 6}), at::zeros({32, 6}), at::zeros({3}, at::kLong), {});
  EXPECT_FLOAT_EQ(flat.item().toFloat(), std::log(32.0f));
}

TEST(LinearCrossEntropy, OnlyTheGradientAskedForIsFormed) {
  const Case c = random_case({.T = 12, .N = 20, .D = 6});
  for (const char* reduction : {"mean", "none"}) {
    const Tensors both = outputs_and_gradients(fused(c.target, {.reduction = reduction}), c.in);
    for (const size_t wanted : {0, 1}) {
      Tensors in = {c.in[0].detach(), c.in[1].detach()};
      in[wanted].requires_grad_();
      const Tensor loss = linear_cross_entropy(in[0], in[1], c.target, {.reduction = reduction});
      const Tensor direction = random_normal(loss.sizes(), 17, at::kBFloat16).to(at::kFloat);
      loss.backward(direction);
      EXPECT_TRUE(same_bits(in[wanted].grad(), both[1 + wanted]));
      EXPECT_FALSE(in[1 - wanted].grad().defined());
    }
  }
}

/// Bytes of CPU memory that a training step holds at most, beyond the gradients of x and weight.
int64_t peak_beyond_gradients(const Shape& shape, bool gradients) {
  const Case c = random_case(shape);
  Tensors in = c.in;
  for (Tensor& tensor : in) tensor.requires_grad_(gradients);
  const PeakAllocation peak;
  const Tensor loss = linear_cross_entropy(in[0], in[1], c.target, {.reduction = shape.reduction});
  if (!gradients) return peak.peak_bytes();
  (loss * 0.5).sum().backward();
  const int64_t bytes = static_cast<int64_t>(in[0].grad().nbytes() + in[1].grad().nbytes());
  EXPECT_GE(peak.peak_bytes(), bytes);
  for (Tensor& tensor : in) tensor.mutable_grad().reset();
  return peak.peak_bytes() - bytes;
}

TEST(LinearCrossEntropy, HoldsOneTileBeyondTheGradients) {
  static constexpr int64_t kTile = 64'000'000;
  for_each_backend(at::kFloat, [] {
    const Shape shape{.T = 1024, .N = 50257, .D = 64};  // T x N logits: 206 MB
    EXPECT_LE(peak_beyond_gradients(shape, true), kTile);
    EXPECT_LE(peak_beyond_gradients(shape, false), 16 << 20);
    EXPECT_LE(peak_beyond_gradients({.T = 1024, .N = 50257, .D = 64, .reduction = "none"}, true), kTile);
    const Threads many(16);  // each computes a product of its own
    EXPECT_LE(peak_beyond_gradients({.T = 1024, .N = 50257, .D = 256}, true), kTile);
    EXPECT_LE(peak_beyond_gradients({.T = 5000, .N = 512, .D = 256}, true), kTile);
    EXPECT_LE(peak_beyond_gradients({.T = 40000, .N = 257, .D = 16}, true), kTile);
  });
}

TEST(LinearCrossEntropy, HoldsOneTileBeyondTheGradientsInBFloat16) {
  const Shape wide{.T = 700, .N = 50257, .D = 256, .dtype = at::kBFloat16};
  // Where bfloat16 is widened, the gradient of the weight is summed in float32 before it is rounded.
  const int64_t wider = has_bfloat16_products(wide.D) ? 0 : 4 * wide.N * wide.D;
  EXPECT_LE(peak_beyond_gradients(wide, true), 64'000'000 + wider);
  EXPECT_LE(peak_beyond_gradients(wide, false), 16 << 20);
}

TEST(LinearCrossEntropy, BFloat16HasASecondForm) {
  const Case c = random_case({.T = 60, .N = 300, .D = 32, .dtype = at::kBFloat16});
  const bool before = at::globalContext().userEnabledMkldnn();
  at::globalContext().setUserEnabledMkldnn(false);
  EXPECT_FALSE(has_bfloat16_products(32));
  expect_as_accurate_as_plain(fused(c.target, {}), plain(c.target, {}), c.in);
  at::globalContext().setUserEnabledMkldnn(before);
}

TEST(LinearCrossEntropy, KeptGraphsGiveTheSameGradientAgain) {
  const Case c = random_case({.T = 12, .N = 20, .D = 6});
  const Tensor x = c.in[0].detach().requires_grad_();
  const Tensor loss = linear_cross_entropy(x, c.in[1], c.target, {}) * 3;
  const Tensors first = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true);
  EXPECT_TRUE(same_bits(torch::autograd::grad({loss}, {x}), first));
}

TEST(LinearCrossEntropy, OtherDtypesUseTheBlockedForm) {
  const Case c = random_case({.T = 12, .N = 20, .D = 6, .dtype = at::kHalf});
  for (const char* reduction : {"mean", "none"}) {
    const Tensors found = outputs_and_gradients(fused(c.target, {.reduction = reduction}), c.in);
    const Tensors expected = outputs_and_gradients(plain(c.target, {.reduction = reduction}), c.in);
    EXPECT_LE(largest(found[0] - expected[0]), 1e-6 * largest(expected[0]));
    for (size_t i = 1; i < found.size(); ++i) {
      EXPECT_EQ(found[i].scalar_type(), at::kHalf);
      EXPECT_LE(largest(found[i] - expected[i]), 2e-3 * largest(expected[i]));
    }
  }
}

TEST(LinearCrossEntropy, MetaTensorsKnowTheirShapes) {
  const Tensor x = at::empty({2, 3, 4}, at::device(at::kMeta).dtype(at::kBFloat16)).requires_grad_();
  const Tensor weight = at::empty({9, 4}, at::device(at::kMeta).dtype(at::kBFloat16));
  const Tensor target = at::empty({2, 3}, at::device(at::kMeta).dtype(at::kLong));
  const Tensor losses = linear_cross_entropy(x, weight, target, {.reduction = "none"});
  EXPECT_EQ(losses.sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(losses.scalar_type(), at::kFloat);
  const Tensor loss = linear_cross_entropy(x, weight, target, {});
  EXPECT_EQ(loss.dim(), 0);
  loss.backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
}

TEST(LinearCrossEntropy, WrongArgumentsAreNamed) {
  const Tensor x = at::zeros({2, 3, 4}), weight = at::zeros({9, 4}), target = at::zeros({2, 3}, at::kLong);
  const auto expect = [&](const Tensor& bad_x, const Tensor& bad_weight, const Tensor& bad_target,
                          const std::string& text, const Options& options = {}) {
    expect_throws<c10::ValueError>([&] { linear_cross_entropy(bad_x, bad_weight, bad_target, options); }, text);
  };
  expect(at::zeros({}), weight, target, "x must have the shape [..., D], but is a scalar");
  expect(x.to(at::kLong), weight, target, "x must be floating point, but is Long");
  expect(x, at::zeros({9, 5}), target, "weight must have the shape [N, 4]");
  expect(x, at::zeros({9, 5}), target, "but has [9, 5]");
  expect(x, at::zeros({0, 4}), target, "N >= 1, but has [0, 4]");
  expect(x, weight.to(at::kDouble), target, "weight must have the dtype of x, Float, but has Double");
  expect(x, weight.to(at::kMeta), target, "weight must be on the device of x, cpu, but is on meta");
  expect(x, weight, at::zeros({3, 2}, at::kLong), "target must have the leading shape of x, [2, 3], but has [3, 2]");
  expect(x, weight, target.to(at::kInt), "target must be int64, but is Int");
  expect(x, weight, target.to(at::kMeta), "target must be on the device of x, cpu, but is on meta");
  expect(x, weight, target, "reduction must be \"mean\", \"sum\" or \"none\", but is \"max\"", {.reduction = "max"});
  expect(x, weight, target, "soft_cap must be a number above 0, but is 0", {.soft_cap = 0.0});
  for (const int64_t target : {9, -1}) {
    expect_throws<c10::IndexError>(
        [&] {
          linear_cross_entropy(x, weight, at::full({2, 3}, target, at::kLong), {});
        },
        "target 0 must be in [0, 9), the rows of weight, or ignore_index -100, but is " + std::to_string(target));
  }
}

TEST(LinearCrossEntropy, SecondDerivativesAreRefused) {
  const Case c = random_case({.T = 4, .N = 5, .D = 3});
  const Tensor x = c.in[0].detach().requires_grad_();
  expect_throws<c10::Error>(
      [&] {
        torch::autograd::grad({linear_cross_entropy(x, c.in[1], c.target, {})}, {x}, {}, true, /*create_graph=*/true);
      },
      "first derivative only");
}

}  // namespace
}  // namespace tamis::ops::linear_cross_entropy_test
