// Panels in which a block of queries accepts many keys: the backward pass processes them together, not pair by pair.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tamis/ops/screening/screening_cpu.h"
#include "tamis/ops/screening/screening_cpu_testing.h"
#include "tamis/ops/screening/testing.h"
#include "tamis/ops/testing.h"

namespace tamis::ops {
namespace {

using at::Tensor;
using testing::expect_accurate;
using testing::kInfinity;
using testing::operator_with;
using testing::random_inputs;
using testing::reference_with;
using testing::Shape;
using testing::Tensors;

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

/// Accepted pairs of a backward pass, and how many of them were processed in dense panels.
struct Pairs {
  double accepted, dense;
};

Pairs pairs_of(const Tensors& in) {
  const auto map = reference::screening_relevance(in[0], in[1], in[3], in[4]);
  const auto [dq, dk, dv, dgate] = empty_gradients(in[0], in[1], in[2], in[5]);
  kernels::PassCounts work;
  screening_backward_cpu(at::ones_like(in[5]), in[0], in[1], in[2], in[3], in[4], {.gate = in[5]}, {dq, dk, dv, dgate},
                         {}, {kernels::Skipping::kNever, &work});
  return {(map.trim * map.softmask > 0).sum().item().toDouble(), work.dense};
}

/// Every query lies near the first axis. So does every key except those of `far`, which every query rejects.
Tensors near_inputs(const Shape& shape, uint64_t seed, const Tensor& far) {
  Tensors in = random_inputs(shape, seed);
  for (const size_t i : {0, 1}) {
    in[i] = 0.3 * testing::random_normal(in[i].sizes(), seed + 50 + i);
    in[i].select(-1, 0) += 2;
  }
  in[1].index_put_({at::indexing::Slice(), far}, -in[1].index({at::indexing::Slice(), far}));
  return in;
}

const Shape kNear = {1, 330, 16, 64, {kInfinity, 150.5}, {0.9, 0.6}};

Tensor every_fifth() {
  return at::arange(3, 330, 5);
}

TEST(ScreeningDense, IsAsAccurateAsPlainTorch) {
  const std::vector<double> accepts = {0.97, 0.8, 0.9995};
  expect_accurate({1, 300, 16, 64, {kInfinity, 90.5, 700}, accepts}, 60);
  expect_accurate({2, 131, 20, 65, {kInfinity, 40, 255.5}, accepts}, 61);
  expect_accurate({1, 85, 2, 1, {kInfinity, 60}, accepts}, 62);
  expect_accurate({1, 300, 16, 24, {kInfinity, 90.5}, accepts, /*queries=*/77}, 63);
  expect_accurate({1, 300, 16, 64, {kInfinity, 90.5}, accepts}, 64, {}, testing::to_bfloat16);
  expect_accurate({1, 220, 16, 24, {kInfinity, 90.5}, accepts}, 65,
                  {.document = at::arange(220).floor_divide(83).expand({1, 220}).contiguous()});
}

TEST(ScreeningDense, WindowsMuchLongerThanTheTextKeepTheirGradient) {
  // In float32, and in float64 for the second head, m rounds to 1 for every key, but its slope is not 0.
  expect_accurate({1, 300, 16, 64, {1e7, 1e12}, {0.97, 0.8}}, 66);
  Tensors in = near_inputs({1, 330, 16, 64, {1e7, 1e12}, {0.9, 0.6}}, 77, every_fifth());
  for (Tensor& x : in) x = x.to(at::kDouble);
  const Tensor exact = testing::outputs_and_gradients(reference_with({}), in)[4];
  EXPECT_GT(exact.abs().min().item().toDouble(), 0);
  testing::for_each_target([&] {
    const Tensor found = testing::outputs_and_gradients(operator_with({}), in)[4];
    EXPECT_LT(((found - exact) / exact).abs().max().item().toDouble(), 1e-6);
  });
}

TEST(ScreeningDense, InFloat64IsTheDefinition) {
  // Panels that are dense, panels that are not, and keys that no query accepts between accepted ones.
  for (const Tensor& far :
       {every_fifth(), at::arange(0, 170), at::cat({at::arange(20, 150), at::arange(200, 290, 3)})}) {
    Tensors in = near_inputs(kNear, 70, far);
    for (Tensor& x : in) x = x.to(at::kDouble);
    testing::for_each_target([&] {
      const Tensors found = testing::outputs_and_gradients(operator_with({}), in);
      const Tensors exact = testing::outputs_and_gradients(reference_with({}), in);
      for (size_t i = 0; i < exact.size(); ++i) {
        EXPECT_LT(testing::largest(found[i] - exact[i]), 1e-11 * testing::largest(exact[i])) << i;
      }
    });
  }
}

TEST(ScreeningDense, TakesManyPairsTogetherAndFewOneByOne) {
  const Pairs many = pairs_of(near_inputs(kNear, 71, every_fifth()));
  EXPECT_GT(many.dense, 0.9 * many.accepted);
  const Pairs some = pairs_of(random_inputs({1, 700, 16, 64, {kInfinity, kInfinity}, {0.05, 0.97}}, 72));
  EXPECT_GT(some.dense, 0.3 * some.accepted);
  EXPECT_LT(some.dense, 0.999 * some.accepted);
  Tensors few = near_inputs(kNear, 73, at::arange(1, 330));
  EXPECT_EQ(pairs_of(few).dense, 0);
}

TEST(ScreeningDense, ThreadsDoNotChangeBits) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    Tensors in = random_inputs({2, 1300, 16, 64, {kInfinity, 900, 200, kInfinity}, {0.97, 0.3, 0.8, 0.05}}, 74);
    for (Tensor& x : in) x = x.to(dtype);
    std::vector<Tensors> found;
    for (const int count : {1, 2, 5}) {
      const testing::Threads threads(count);
      found.push_back(testing::outputs_and_gradients(operator_with({}), in));
    }
    EXPECT_TRUE(testing::same_bits(found[0], found[1]));
    EXPECT_TRUE(testing::same_bits(found[0], found[2]));
  }
}

TEST(ScreeningDense, ARejectedValueIsNotReadNextToAcceptedOnes) {
  Tensors in = near_inputs(kNear, 75, every_fifth());
  const Tensors clean = testing::outputs_and_gradients(operator_with({}), in);
  in[2].index_put_({at::indexing::Slice(), every_fifth()}, kNotANumber);
  testing::for_each_target([&] {
    const Tensors found = testing::outputs_and_gradients(operator_with({}), in);
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_LE(testing::largest(found[i] - clean[i]), 1e-4 * testing::largest(clean[i])) << i;  // false for a NaN
    }
  });
}

/// Even queries and keys point away from odd ones: each query accepts half of every panel.
Tensors two_kinds(uint64_t seed) {
  Tensors in = near_inputs(kNear, seed, at::arange(0, 330, 2));
  in[0].slice(1, 0, 330, 2).neg_();
  return in;
}

TEST(ScreeningDense, NaNReachesOnlyWhoAcceptsIt) {
  const Tensors clean_in = two_kinds(76);
  EXPECT_GT(pairs_of(clean_in).dense, 0.5 * pairs_of(clean_in).accepted);
  const auto odd = [](const Tensor& x) { return x.slice(1, 1, x.size(1), 2); };
  testing::for_each_target([&] {
    const Tensors expected = testing::outputs_and_gradients(operator_with({}), clean_in);
    const auto expect_odd = [&](const Tensors& found, std::initializer_list<size_t> which) {
      for (const size_t i : which) {
        EXPECT_LE(testing::largest(odd(found[i]) - odd(expected[i])), 1e-5 * testing::largest(expected[i])) << i;
      }
    };
    // A NaN in the value of an even key changes no output or gradient of odd queries, keys and values.
    Tensors in = clean_in;
    in[2] = clean_in[2].clone();
    in[2].select(1, 100).fill_(kNotANumber);
    Tensors found = testing::outputs_and_gradients(operator_with({}), in);
    expect_odd(found, {0, 1, 2, 3});
    EXPECT_TRUE(found[1].select(1, 200).isnan().all().item().toBool());
    // In the gate of an even query it changes nothing of odd queries and keys.
    in = clean_in;
    in[5] = clean_in[5].clone();
    in[5].select(1, 200).fill_(kNotANumber);
    found = testing::outputs_and_gradients(operator_with({}), in);
    expect_odd(found, {0, 1, 2, 3});
    EXPECT_TRUE(found[3].select(1, 100).isnan().all().item().toBool());
    // In a key it reaches every later query, which accepts the key, and no earlier one.
    in = clean_in;
    in[1] = clean_in[1].clone();
    in[1].select(1, 200).fill_(kNotANumber);
    found = testing::outputs_and_gradients(operator_with({}), in);
    EXPECT_TRUE(found[1].slice(1, 0, 200).isfinite().all().item().toBool());
    EXPECT_TRUE(found[1].select(1, 201).isnan().all().item().toBool());
  });
}

}  // namespace
}  // namespace tamis::ops
