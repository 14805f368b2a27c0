#include "tamis/nn/rows.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tamis/nn/recompute.h"

namespace tamis::nn {
namespace {

using at::Tensor;

Tensor gradient(const Tensor& y, const Tensor& x, const Tensor& g) {
  return torch::autograd::grad({y}, {x}, {g}, /*retain_graph=*/true)[0];
}

TEST(UnitRows, IsTheRowByItsLengthAndSoIsTheGradient) {
  at::manual_seed(1);
  const Tensor x = at::randn({3, 5, 7}, at::kDouble).requires_grad_(true);
  const Tensor g = at::randn({3, 5, 7}, at::kDouble);
  const Tensor y = unit_rows(x), plain = x / x.norm(2, -1, true);
  EXPECT_LT((y - plain).abs().max().item<double>(), 1e-15);
  EXPECT_LT((gradient(y, x, g) - gradient(plain, x, g)).abs().max().item<double>(), 1e-14);
}

TEST(UnitRows, AZeroRowStaysZeroAndGetsNoGradient) {
  Tensor x = at::ones({2, 4}, at::kFloat);
  x[1].zero_();
  x.requires_grad_(true);
  const Tensor y = unit_rows(x);
  EXPECT_EQ(y[1].abs().max().item<float>(), 0);
  const Tensor dx = gradient(y, x, at::full({2, 4}, 3.0f));
  EXPECT_EQ(dx[1].abs().max().item<float>(), 0);
}

TEST(ExpScaled, ScalesAndHasTheGradientOfItsScale) {
  at::manual_seed(1);
  const Tensor x = at::randn({2, 3, 4}, at::kDouble).requires_grad_(true);
  const Tensor s = at::full({}, 0.7, at::kDouble).requires_grad_(true);
  const Tensor g = at::randn({2, 3, 4}, at::kDouble);
  const Tensor y = exp_scaled(x, s), plain = x * s.exp();
  EXPECT_TRUE(y.equal(plain));
  EXPECT_LT((gradient(y, x, g) - gradient(plain, x, g)).abs().max().item<double>(), 1e-14);
  EXPECT_EQ(gradient(y, s, g).dim(), 0);
  EXPECT_NEAR(gradient(y, s, g).item<double>(), gradient(plain, s, g).item<double>(), 1e-13);
}

TEST(ExpScaled, ScalesTheGradientWithTheSameBitsForAnyNumberOfThreads) {
  at::manual_seed(1);
  const Tensor x = at::randn({4, 3000, 50}), g = at::randn({4, 3000, 50});
  const Tensor s = at::zeros({}).requires_grad_(true);
  const auto with_threads = [&](int threads) {
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    const Tensor ds = gradient(exp_scaled(x, s), s, g);
    at::set_num_threads(before);
    return ds;
  };
  EXPECT_TRUE(with_threads(1).equal(with_threads(4)));
}

TEST(Recompute, RunsTheFunctionAgainForTheSameGradients) {
  at::manual_seed(1);
  const Tensor a = at::randn({5, 5}).requires_grad_(true), b = at::randn({5, 5}).requires_grad_(true);
  const Tensor constant = at::randn({5, 5});
  int runs = 0;
  const TensorFunction function = [&runs](const std::vector<Tensor>& in) {
    ++runs;
    return (in[0].matmul(in[1]) + in[2]).tanh();
  };
  const Tensor g = at::randn({5, 5});
  const auto kept = torch::autograd::grad({function({a, b, constant})}, {a, b}, {g});
  const Tensor output = recompute(function, {a, b, constant});
  EXPECT_EQ(runs, 2);
  const auto again = torch::autograd::grad({output}, {a, b}, {g});
  EXPECT_EQ(runs, 3);
  EXPECT_TRUE(kept[0].equal(again[0]));
  EXPECT_TRUE(kept[1].equal(again[1]));
}

}  // namespace
}  // namespace tamis::nn
