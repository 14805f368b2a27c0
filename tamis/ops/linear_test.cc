#include "tamis/ops/linear.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "tamis/ops/testing.h"

namespace tamis::ops {
namespace {

using at::Tensor;
using testing::Tensors;

constexpr Float32Products kEveryProducts[] = {Float32Products::kAten, Float32Products::kOneDnn};

/// Rows, E, D: nothing, a row, odd sizes, more outputs than inputs and fewer.
constexpr std::tuple<int64_t, int64_t, int64_t> kSizes[] = {
    {0, 3, 5}, {1, 1, 1}, {1, 40, 24}, {7, 33, 65}, {64, 96, 32}, {130, 48, 200}, {513, 320, 96}, {1500, 24, 40}};

Tensors inputs_of(int64_t rows, int64_t E, int64_t D, at::ScalarType dtype = at::kFloat) {
  return {testing::random_normal({rows, D}, 1).to(dtype), testing::random_normal({E, D}, 2).to(dtype)};
}

testing::Function by(Float32Products products) {
  return [products](const Tensors& in) { return Tensors{linear(in[0], in[1], products)}; };
}
Tensors by_aten(const Tensors& in) {
  return {at::linear(in[0], in[1])};
}

TEST(Linear, IsAsAccurateAsAten) {
  for (const auto products : kEveryProducts) {
    for (const auto& [rows, E, D] : kSizes) {
      SCOPED_TRACE(::testing::Message() << rows << " rows, E " << E << ", D " << D);
      testing::expect_as_accurate_as_plain(by(products), by_aten, inputs_of(rows, E, D));
    }
  }
}

TEST(Linear, TakesEveryShapeAndStride) {
  for (const auto products : kEveryProducts) {
    const Tensor x = testing::random_normal({2, 3, 70, 24}, 1), weight = testing::random_normal({40, 24}, 2);
    const auto expect_close = [&](const Tensor& a, const Tensor& b) {
      const Tensors found = testing::outputs_and_gradients(by(products), {a, b});
      const Tensors expected = testing::outputs_and_gradients(by_aten, {a, b});
      for (size_t i = 0; i < found.size(); ++i) {
        ASSERT_EQ(found[i].sizes(), expected[i].sizes());
        EXPECT_LE(testing::largest(found[i] - expected[i]), 1e-5 * testing::largest(expected[i]));
      }
    };
    expect_close(x, weight);
    expect_close(x[0][0][0], weight);  // a vector
    expect_close(testing::strided(x), testing::strided(weight));
    expect_close(x.transpose(1, 2), weight.t().contiguous().t());
    expect_close(x.narrow(-1, 5, 16), weight.narrow(1, 3, 16));  // parts of matrices
    expect_close(x[0][0][0].expand({9, 24}), weight.narrow(0, 7, 1).expand({5, 24}));
  }
}

TEST(Linear, AsksOneDnnForFloat32Only) {
  for (const auto dtype : {at::kBFloat16, at::kDouble, at::kHalf}) {
    const Tensors in = inputs_of(20, 12, 16, dtype);
    EXPECT_TRUE(testing::same_bits(testing::outputs_and_gradients(by(Float32Products::kOneDnn), in),
                                   testing::outputs_and_gradients(by_aten, in)));
  }
}

TEST(Linear, HasTheSameBitsForAnyNumberOfThreads) {
  for (const auto& [rows, E, D] : {std::tuple<int64_t, int64_t, int64_t>{1000, 256, 64}, {513, 48, 1024}}) {
    for (const auto products : kEveryProducts) {
      Tensors expected;
      for (const int threads : {1, 2, 3, 7}) {
        const testing::Threads count(threads);
        const Tensors found = testing::outputs_and_gradients(by(products), inputs_of(rows, E, D));
        if (expected.empty()) expected = found;
        EXPECT_TRUE(testing::same_bits(found, expected)) << threads << " threads";
      }
    }
  }
}

TEST(Linear, PutsResultsInTheirPlaceOrAddsThem) {
  const Tensor x = testing::random_normal({30, 24}, 1), weight = testing::random_normal({40, 24}, 2);
  const Tensor dy = testing::random_normal({30, 40}, 3);
  for (const auto products : kEveryProducts) {
    for (const bool add : {false, true}) {
      const auto expect_put = [&](const Tensor& expected, const auto& into) {
        const Tensor before = testing::random_normal(expected.sizes(), 4);
        // Part of a larger matrix; what was there counts only where the product is added.
        Tensor memory = at::full({expected.size(0) + 2, expected.size(1)}, 7.0);
        const Tensor place = memory.narrow(0, 1, expected.size(0));
        place.copy_(add ? before : at::full_like(before, NAN));
        into(Place{place, add});
        const Tensor sum = add ? before + expected : expected;
        EXPECT_LE(testing::largest(place - sum), 1e-5 * testing::largest(sum));
        EXPECT_TRUE((memory[0] == 7).all().item().toBool() && (memory[-1] == 7).all().item().toBool());
      };
      expect_put(x.matmul(weight.t()), [&](const Place& to) { linear_into(to, x, weight, products); });
      expect_put(dy.matmul(weight), [&](const Place& to) { linear_input_gradient_into(to, dy, weight, products); });
      expect_put(dy.t().matmul(x), [&](const Place& to) { linear_weight_gradient_into(to, dy, x, products); });
    }
  }
}

TEST(Linear, CanBeDifferentiatedTwice) {
  // f = sum((X W^T)^2) / 2: df/dX = X W^T W, and the gradient of sum(df/dX) with respect to X is 1 W^T W.
  for (const auto products : kEveryProducts) {
    const Tensor x = testing::random_normal({6, 8}, 1).requires_grad_();
    const Tensor weight = testing::random_normal({4, 8}, 2).requires_grad_();
    const Tensor f = linear(x, weight, products).square().sum() / 2;
    const Tensor first = torch::autograd::grad({f}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    const Tensor second = torch::autograd::grad({first.sum()}, {x})[0];
    const Tensor expected = at::ones_like(x).matmul(weight.t()).matmul(weight);
    EXPECT_LE(testing::largest(second - expected), 1e-4 * testing::largest(expected));
  }
}

TEST(Linear, RefusesWhatDoesNotFitAsAtenDoes) {
  for (const auto products : kEveryProducts) {
    testing::expect_throws<c10::Error>(
        [&] {
          linear(at::ones({3, 4}), at::ones({5, 6}), products);
        },
        "mat1 and mat2 shapes cannot be multiplied (3x4 and 6x5)");
  }
}

}  // namespace
}  // namespace tamis::ops
