#include "tamis/train/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tamis/ops/simulated_device/testing.h"

namespace tamis::train {
namespace {

models::Parameter parameter(const std::string& name, const at::Tensor& values, const at::Tensor& gradient) {
  at::Tensor leaf = values.clone().set_requires_grad(true);
  leaf.mutable_grad() = gradient.clone();
  return {name, leaf};
}

TEST(LearningRate, WarmsUpThenStays) {
  const TrainRecipe train{.steps = 100, .lr = 0.0625, .warmup_steps = 4};
  EXPECT_DOUBLE_EQ(learning_rate(train, 0), 0.0625 / 4);
  EXPECT_DOUBLE_EQ(learning_rate(train, 2), 0.0625 * 3 / 4);
  EXPECT_DOUBLE_EQ(learning_rate(train, 3), 0.0625);
  EXPECT_DOUBLE_EQ(learning_rate(train, 99), 0.0625);
}

TEST(LearningRate, CosineGoesFromThePeakToTheLeast) {
  const TrainRecipe train{.steps = 105, .lr = 1.0, .warmup_steps = 4, .schedule = "cosine", .min_lr = 0.1};
  EXPECT_DOUBLE_EQ(learning_rate(train, 3), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(train, 4), 1.0);
  EXPECT_NEAR(learning_rate(train, 54), 0.55, 1e-12);
  EXPECT_NEAR(learning_rate(train, 104), 0.1, 1e-12);
}

TEST(LearningRate, CosineMayWaitForTheLastSteps) {
  const TrainRecipe train{.steps = 105, .lr = 1.0, .warmup_steps = 4, .schedule = "cosine", .decay_share = 0.25};
  EXPECT_DOUBLE_EQ(learning_rate(train, 50), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(train, 80), 1.0);
  EXPECT_NEAR(learning_rate(train, 92), 0.5, 1e-12);
  EXPECT_NEAR(learning_rate(train, 104), 0.0, 1e-12);
}

TEST(LearningRate, WithoutWarmUpStartsAtThePeak) {
  EXPECT_EQ(learning_rate({.lr = 0.5, .warmup_steps = 0}, 0), 0.5);
}

/// AdamW as Loshchilov and Hutter define it, in float64.
struct ExactAdamW {
  at::Tensor value, first, second;
  void step(const at::Tensor& g, int64_t n, const TrainRecipe& train, double lr, double decay) {
    const auto [beta1, beta2] = train.betas;
    value = value * (1 - lr * decay);
    first = beta1 * first + (1 - beta1) * g;
    second = beta2 * second + (1 - beta2) * g * g;
    const at::Tensor unbiased = second / (1 - std::pow(beta2, n + 1));
    value = value - lr / (1 - std::pow(beta1, n + 1)) * first / (unbiased.sqrt() + train.eps);
  }
};

TEST(AdamW, FollowsTheDefinition) {
  const TrainRecipe train{.weight_decay = 0.1};
  at::manual_seed(1);
  const at::Tensor matrix = at::randn({17, 33}), vector = at::randn({5});
  AdamW optimizer({parameter("matrix", matrix, matrix), parameter("vector", vector, vector)}, train);
  const auto zeros = [](const at::Tensor& like) { return at::zeros_like(like, at::kDouble); };
  ExactAdamW exact_matrix{matrix.to(at::kDouble), zeros(matrix), zeros(matrix)};
  ExactAdamW exact_vector{vector.to(at::kDouble), zeros(vector), zeros(vector)};
  for (int64_t n = 0; n < 5; ++n) {
    const at::Tensor matrix_gradient = at::randn({17, 33}), vector_gradient = at::randn({5});
    optimizer.parameters()[0].tensor.mutable_grad() = matrix_gradient;
    optimizer.parameters()[1].tensor.mutable_grad() = vector_gradient;
    exact_matrix.step(0.5 * matrix_gradient.to(at::kDouble), n, train, 0.01, 0.1);
    exact_vector.step(0.5 * vector_gradient.to(at::kDouble), n, train, 0.01,
                      0.0);  // weight decay applies to matrices only
    optimizer.step(n, 0.01, /*gradient_scale=*/0.5);
    EXPECT_FALSE(optimizer.parameters()[0].tensor.grad().defined());
  }
  const auto error = [&](size_t i, const ExactAdamW& exact) {
    return (optimizer.parameters()[i].tensor - exact.value).abs().max().item<double>();
  };
  EXPECT_LT(error(0, exact_matrix), 2e-6);
  EXPECT_LT(error(1, exact_vector), 2e-6);
}

TEST(AdamW, SameBitsForOneAndMoreThreads) {
  const auto run = [](int threads) {
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    at::manual_seed(3);
    AdamW optimizer({parameter("w", at::randn({1001, 333}), at::randn({1001, 333}))}, {});
    optimizer.step(0, 0.1);
    optimizer.parameters()[0].tensor.mutable_grad() = at::randn({1001, 333});
    optimizer.step(1, 0.1);
    at::set_num_threads(before);
    return optimizer.parameters()[0].tensor.detach();
  };
  EXPECT_TRUE(at::equal(run(1), run(2)));
}

TEST(GlobalNorm, IsRightAndTheSameForAnyNumberOfThreads) {
  at::manual_seed(2);
  const std::vector<at::Tensor> tensors = {at::randn({1000, 77}), at::Tensor(), at::randn({3}),
                                           at::randn({40, 30}).t()};
  double exact = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) exact += tensor.to(at::kDouble).pow(2).sum().item<double>();
  }
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const double one = global_norm(tensors);
  at::set_num_threads(3);
  const double three = global_norm(tensors);
  at::set_num_threads(before);
  EXPECT_NEAR(one, std::sqrt(exact), 1e-9);
  EXPECT_EQ(one, three);
}

/// Of each block the same sum as the kernel of the CPU, up to the order of the sum.
TEST(BlockSums, OfAnyDeviceAreThoseOfTheCpu) {
  at::manual_seed(3);
  for (const int64_t count : {int64_t{0}, int64_t{1}, kNormBlock - 1, kNormBlock, 3 * kNormBlock + 5}) {
    const std::vector<at::Tensor> tensors = {at::randn({count}), at::Tensor(), at::randn({2, count}).t()};
    const std::vector<std::vector<double>> expected = block_sums(tensors);
    EXPECT_TRUE(expected[1].empty());
    for (const size_t i : {0, 2}) {
      const at::Tensor sums = block_sums_on_device(tensors[i]);
      ASSERT_EQ(sums.numel(), expected[i].size()) << count;
      for (size_t block = 0; block < expected[i].size(); ++block) {
        const double sum = expected[i][block];
        EXPECT_NEAR(sums[static_cast<int64_t>(block)].item<double>(), sum, 1e-13 * sum) << count << ", " << block;
      }
    }
  }
  at::Tensor large = at::full({kNormBlock + 1}, 1e30);  // whose square is beyond float32
  EXPECT_NEAR(block_sums_on_device(large)[1].item<double>(), 1e60, 1e53);
  large[kNormBlock] = NAN;
  EXPECT_TRUE(std::isfinite(block_sums_on_device(large)[0].item<double>()));
  EXPECT_TRUE(std::isnan(block_sums_on_device(large)[1].item<double>()));
}

TEST(BlockSums, OfADeviceAreCopiedOnceForAllTensors) {
  at::manual_seed(4);
  ops::testing::SimulatedDevice& simulated = ops::testing::SimulatedDevice::get();
  const std::vector<at::Tensor> on_cpu = {at::randn({kNormBlock + 3}), at::Tensor(), at::randn({2, 3})};
  std::vector<at::Tensor> on_device;
  for (const at::Tensor& tensor : on_cpu) {
    on_device.push_back(tensor.defined() ? tensor.to(ops::testing::SimulatedDevice::device()) : tensor);
  }
  simulated.reset();
  const std::vector<std::vector<double>> sums = block_sums(on_device), expected = block_sums(on_cpu);
  EXPECT_EQ(simulated.to_host(), std::vector<std::string>{"copy [3]"});
  for (size_t i = 0; i < sums.size(); ++i) {
    ASSERT_EQ(sums[i].size(), expected[i].size());
    for (size_t block = 0; block < sums[i].size(); ++block) {
      EXPECT_NEAR(sums[i][block], expected[i][block], 1e-13 * expected[i][block]);
    }
  }
}

TEST(FirstNonFinite, NamesParametersFromTheFirstAndGradientsFromTheLast) {
  const at::Tensor good = at::ones({3}), bad = at::full({3}, NAN), infinite = at::full({3}, INFINITY);
  std::vector<models::Parameter> parameters = {parameter("a", good, bad), parameter("b", infinite, infinite),
                                               parameter("c", bad, good)};
  EXPECT_EQ(first_non_finite_parameter(parameters), "parameter b");
  const auto sums = [&] { return gradient_block_sums(parameters); };
  EXPECT_EQ(first_non_finite_gradient(parameters, sums()), "gradient of b");
  parameters = {parameter("a", good.clone(), good)};
  EXPECT_EQ(first_non_finite_parameter(parameters), "");
  EXPECT_EQ(first_non_finite_gradient(parameters, sums()), "");
}

}  // namespace
}  // namespace tamis::train
