#include "tamis/nn/dropout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <vector>

#include "tamis/nn/recompute.h"

namespace tamis::nn {
namespace {

using at::Tensor;

constexpr Dropout kQuarter{.share = 0.25, .seed = 1, .step = 7};
constexpr double kElements = 8 * 100 * 250;

double zeros(const Tensor& x) {
  return x.eq(0).sum().item<double>();
}

TEST(Dropout, DropsItsShareAndScalesTheRest) {
  const Tensor y = dropout(at::ones({8, 100, 250}), kQuarter);
  EXPECT_EQ(zeros(y) + y.eq(4.0 / 3).sum().item<double>(), kElements);
  EXPECT_NEAR(zeros(y) / kElements, 0.25, 5 * std::sqrt(0.25 * 0.75 / kElements));  // five standard errors
  for (const int64_t dimension : {0, 1, 2}) {
    const auto others = kElements / static_cast<double>(y.size(dimension));
    const Tensor shares = y.eq(0).transpose(0, dimension).flatten(1).to(at::kDouble).mean(1);
    EXPECT_LT((shares - 0.25).abs().max().item<double>(), 5 * std::sqrt(0.25 * 0.75 / others)) << dimension;
  }
}

TEST(Dropout, ElementsAreIndependentOfTheirNeighboursAndOfOtherPlacesAndSteps) {
  const Tensor ones = at::ones({8, 100, 250});
  const Tensor dropped = dropout(ones, kQuarter).eq(0);
  const auto both = [&](const Tensor& a, const Tensor& b) {
    const Tensor share = a.logical_and(b).to(at::kDouble).mean();
    EXPECT_NEAR(share.item<double>(), 1.0 / 16, 5 * std::sqrt(1.0 / 16 / static_cast<double>(a.numel())));
  };
  for (const int64_t dimension : {0, 1, 2}) {
    const int64_t last = dropped.size(dimension) - 1;
    both(dropped.narrow(dimension, 0, last), dropped.narrow(dimension, 1, last));
  }
  for (int change = 0; change < 3; ++change) {
    Dropout other = kQuarter;
    (change == 0 ? other.place : change == 1 ? other.step : other.first_row) += 8;
    both(dropped, dropout(ones, other).eq(0));
  }
  Dropout seed = kQuarter;
  seed.seed = 2;
  both(dropped, dropout(ones, seed).eq(0));
}

TEST(Dropout, APartHasTheBitsOfTheWhole) {
  at::manual_seed(1);
  const Tensor x = at::randn({6, 40, 33});
  Dropout part = kQuarter;
  part.first_row = 2;
  part.first_token = 10;
  const auto cut = [](const Tensor& whole) { return whole.narrow(0, 2, 3).narrow(1, 10, 25); };
  EXPECT_TRUE(dropout(cut(x), part).equal(cut(dropout(x, kQuarter))));
}

TEST(Dropout, TheGradientHasTheSameZerosAndScale) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Tensor x = at::randn({2, 50, 20}).to(dtype).requires_grad_(true);
    const Tensor g = at::randn({2, 50, 20}).to(dtype);
    const auto gradient = [&](const Tensor& y) { return torch::autograd::grad({y}, {x}, {g})[0]; };
    const Tensor expected = dropout(g, kQuarter);
    EXPECT_GT(zeros(expected), 0);
    const Tensor found = gradient(dropout(x, kQuarter));
    EXPECT_EQ(found.scalar_type(), dtype);
    EXPECT_TRUE(found.equal(expected));
    const auto again = [](const std::vector<Tensor>& in) { return dropout(in[0], kQuarter); };
    EXPECT_TRUE(gradient(recompute(again, {x})).equal(expected));
  }
}

}  // namespace
}  // namespace tamis::nn
