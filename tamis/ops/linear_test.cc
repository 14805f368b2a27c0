#include "tamis/ops/linear.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "tamis/base/instruction_set.h"
#include "tamis/ops/matmul_backend.h"
#include "tamis/ops/testing.h"

namespace tamis::ops {
namespace {

using at::Tensor;
using testing::for_each_backend;
using testing::Tensors;

/// Rows, E, D: no rows, one row, odd sizes, more outputs than inputs, fewer outputs than inputs, long sums, many rows.
constexpr std::tuple<int64_t, int64_t, int64_t> kSizes[] = {{0, 3, 5},     {1, 1, 1},      {1, 40, 24},
                                                            {7, 33, 65},   {64, 96, 32},   {130, 48, 200},
                                                            {9, 20, 2000}, {513, 320, 96}, {1500, 24, 40}};

Tensors inputs_of(int64_t rows, int64_t E, int64_t D, at::ScalarType dtype = at::kFloat) {
  return {testing::random_normal({rows, D}, 1).to(dtype), testing::random_normal({E, D}, 2).to(dtype)};
}

constexpr const char* kNoOneDnn = "oneDNN never multiplies float32 on this processor";

Tensors by_tamis(const Tensors& in) {
  return {ops::linear(in[0], in[1])};
}
Tensors by_aten(const Tensors& in) {
  return {at::linear(in[0], in[1])};
}

void expect_equal_products(const Tensor& found, const Tensor& expected) {
  ASSERT_EQ(found.sizes(), expected.sizes());
  EXPECT_LE(testing::largest(found - expected), 1e-5 * testing::largest(expected));
}

/// Counts the calls of oneDNN's product in a scope.
class OneDnnCalls {
 public:
  OneDnnCalls() {
    calls_ = 0;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction& called) {
                                      calls_ += std::string(called.name()) == "mkldnn::_linear_pointwise";
                                      return std::unique_ptr<at::ObserverContext>();
                                    }).scopes({at::RecordScope::FUNCTION}));
  }
  ~OneDnnCalls() { at::removeCallback(handle_); }
  OneDnnCalls(const OneDnnCalls&) = delete;
  OneDnnCalls& operator=(const OneDnnCalls&) = delete;

  int operator()() const { return calls_; }

 private:
  static inline std::atomic<int> calls_{0};
  at::CallbackHandle handle_;
};

TEST(Linear, IsAsAccurateAsAten) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for_each_backend(dtype, [&] {
      for (const auto& [rows, E, D] : kSizes) {
        SCOPED_TRACE(::testing::Message() << rows << " rows, E " << E << ", D " << D);
        testing::expect_as_accurate_as_plain(by_tamis, by_aten, inputs_of(rows, E, D, dtype));
      }
    });
  }
}

TEST(Linear, WidensBFloat16WhereTheProcessorDoesNotMultiplyIt) {
  const testing::Backend set(at::kBFloat16, MatmulBackend::kWidened);
  for (const auto& [rows, E, D] : kSizes) {
    const Tensors in = inputs_of(rows, E, D, at::kBFloat16), wide = {in[0].to(at::kFloat), in[1].to(at::kFloat)};
    const Tensors found = testing::outputs_and_gradients(by_tamis, in);
    const Tensors expected = testing::outputs_and_gradients(by_tamis, wide);
    ASSERT_EQ(found[0].scalar_type(), at::kBFloat16);
    EXPECT_TRUE(testing::same_bits({found[0]}, {expected[0].to(at::kBFloat16)}))
        << "multiplied in float32, rounded once";
    for (size_t i = 1; i < found.size(); ++i) EXPECT_EQ(found[i].scalar_type(), at::kBFloat16);
  }
}

TEST(MatmulBackend, WithoutAvx512IsMklAndFloat32ForBFloat16) {
  if (instruction_set() != InstructionSet::kAvx2) GTEST_SKIP() << "this processor has AVX-512, or no AVX2";
  EXPECT_EQ(matmul_backends(at::kFloat), std::vector{MatmulBackend::kAten});
  EXPECT_EQ(matmul_backends(at::kBFloat16), std::vector{MatmulBackend::kWidened});
  EXPECT_EQ(at::get_cpu_capability(), "AVX2") << "LibTorch obeys the same maximum";
}

TEST(MatmulBackend, IsTheFirstOfThoseItMayBe) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    EXPECT_EQ(matmul_backends(dtype).front(), matmul_backend(dtype)) << dtype;
  }
  EXPECT_ANY_THROW(set_matmul_backend(at::kDouble, MatmulBackend::kOneDnn));
}

TEST(Linear, TakesEveryShapeAndStride) {
  const Tensor x = testing::random_normal({2, 3, 70, 24}, 1), weight = testing::random_normal({40, 24}, 2);
  for_each_backend(at::kFloat, [&] {
    const auto expect_same = [](const Tensor& a, const Tensor& b) {
      const Tensors found = testing::outputs_and_gradients(by_tamis, {a, b});
      const Tensors expected = testing::outputs_and_gradients(by_aten, {a, b});
      for (size_t i = 0; i < found.size(); ++i) expect_equal_products(found[i], expected[i]);
    };
    expect_same(x, weight);
    expect_same(x[0][0][0], weight);  // a vector
    expect_same(testing::strided(x), testing::strided(weight));
    expect_same(x.transpose(1, 2), weight.t().contiguous().t());
    expect_same(x.narrow(-1, 5, 16), weight.narrow(1, 3, 16));  // parts of matrices
    expect_same(x[0][0][0].expand({9, 24}), weight.narrow(0, 7, 1).expand({5, 24}));
    expect_same(x, testing::random_normal({63}, 3).unfold(0, 24, 1));  // rows that overlap
    // Gradients that are expanded, or part of a larger tensor.
    const Tensor dy = testing::random_normal({30, 90}, 4), rows = x[0][0].narrow(0, 0, 30);
    for (const Tensor& each :
         {dy.narrow(1, 20, 40), at::ones({1}).expand({30, 40}), dy.t().narrow(0, 0, 30).narrow(1, 0, 30)}) {
      expect_equal_products(linear_weight_gradient(each, rows), each.t().mm(rows));
      EXPECT_TRUE(linear_weight_gradient(each, rows).is_contiguous());
      if (each.size(1) == 40) expect_equal_products(linear_input_gradient(each, weight), each.mm(weight));
    }
  });
}

TEST(Linear, BothGradientsTogetherHaveTheBitsOfEach) {
  const auto expect_same = [](const Tensor& dy, const Tensor& x, const Tensor& weight) {
    const auto [dx, dw] = linear_gradients(dy, x, weight);
    EXPECT_TRUE(testing::same_bits(dx, linear_input_gradient(dy, weight)));
    EXPECT_TRUE(testing::same_bits(dw, linear_weight_gradient(dy, x)));
    EXPECT_EQ(dx.sizes(), x.sizes());
  };
  const auto expect_same_in_every_size = [&](at::ScalarType dtype) {
    for (const int64_t rows : {0, 1, 130, 2048, 4100}) {  // widened 2,048 at a time
      SCOPED_TRACE(::testing::Message() << rows << " rows");
      const Tensors in = inputs_of(rows, 40, 24, dtype);
      const Tensor dy = testing::random_normal({rows, 40}, 3).to(dtype);
      expect_same(dy, in[0], in[1]);
      expect_same(testing::strided(dy), in[0], in[1].t().contiguous().t());
    }
    const Tensor x = testing::random_normal({2, 3, 70, 24}, 4).to(dtype);
    expect_same(testing::random_normal({2, 3, 70, 40}, 5).to(dtype), x, inputs_of(1, 40, 24, dtype)[1]);
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for_each_backend(dtype, [&] { expect_same_in_every_size(dtype); });
  }
  const testing::Backend widened(at::kBFloat16, MatmulBackend::kWidened);  // on every processor
  expect_same_in_every_size(at::kBFloat16);
}

TEST(Linear, AsksOneDnnForFloat32Only) {
  if (!testing::has_backend(at::kFloat, MatmulBackend::kOneDnn)) GTEST_SKIP() << kNoOneDnn;
  const testing::Backend set(at::kFloat, MatmulBackend::kOneDnn);
  const testing::Backend aten(at::kBFloat16, MatmulBackend::kAten);  // kWidened multiplies in float32
  const auto calls_of = [](at::ScalarType dtype) {
    const OneDnnCalls calls;
    testing::outputs_and_gradients(by_tamis, inputs_of(20, 12, 16, dtype));
    const Tensors in = inputs_of(20, 12, 16, dtype);
    linear_into(at::empty({20, 12}, dtype), Into::kReplace, in[0], in[1]);
    linear_input_gradient_into(at::empty({20, 16}, dtype), Into::kReplace, at::ones({20, 12}, dtype), in[1]);
    linear_weight_gradient_into(at::empty({12, 16}, dtype), Into::kReplace, at::ones({20, 12}, dtype), in[0]);
    return calls();
  };
  EXPECT_EQ(calls_of(at::kFloat), 6);
  for (const auto dtype : {at::kBFloat16, at::kDouble, at::kHalf}) EXPECT_EQ(calls_of(dtype), 0) << dtype;
  at::globalContext().setUserEnabledMkldnn(false);
  EXPECT_EQ(calls_of(at::kFloat), 0);
  at::globalContext().setUserEnabledMkldnn(true);
  set_matmul_backend(at::kFloat, MatmulBackend::kAten);
  EXPECT_EQ(calls_of(at::kFloat), 0);
}

TEST(Linear, HasTheSameBitsForAnyNumberOfThreadsByOneDnn) {
  if (!testing::has_backend(at::kFloat, MatmulBackend::kOneDnn)) GTEST_SKIP() << kNoOneDnn;
  const testing::Backend set(at::kFloat, MatmulBackend::kOneDnn);
  for (const auto& [rows, E, D] : {std::tuple<int64_t, int64_t, int64_t>{1000, 256, 64},
                                   {513, 48, 1024},
                                   {64, 2560, 256},
                                   {9, 256, 1024},
                                   {1, 2560, 256}}) {
    Tensors expected;
    for (const int threads : {1, 2, 3, 8, 16}) {
      const testing::Threads count(threads);
      const Tensors found = testing::outputs_and_gradients(by_tamis, inputs_of(rows, E, D));
      if (expected.empty()) expected = found;
      EXPECT_TRUE(testing::same_bits(found, expected)) << threads << " threads, " << rows << " x " << E << " x " << D;
    }
  }
}

TEST(Linear, HasTheSameBitsForAnyNumberOfThreadsInTiles) {
  if (instruction_set() < InstructionSet::kAvx512Bf16) GTEST_SKIP() << "this processor never multiplies bfloat16";
  const testing::Backend set(at::kBFloat16, MatmulBackend::kTiled);
  // Sums of 1,024 and more, which oneDNN divides among threads where it uses AMX; shapes that are not whole tiles.
  for (const auto& [rows, E, D] : {std::tuple<int64_t, int64_t, int64_t>{1400, 64, 64},
                                   {2100, 96, 256},
                                   {1024, 1280, 64},
                                   {1000, 300, 1100},
                                   {513, 48, 1024},
                                   {3, 2560, 256},
                                   {1, 40, 24}}) {
    const Tensors in = inputs_of(rows, E, D, at::kBFloat16);
    testing::expect_as_accurate_as_plain(by_tamis, by_aten, in);
    Tensors expected;
    for (const int threads : {1, 2, 3, 5}) {
      const testing::Threads count(threads);
      const Tensors found = testing::outputs_and_gradients(by_tamis, in);
      if (expected.empty()) expected = found;
      EXPECT_TRUE(testing::same_bits(found, expected)) << threads << " threads, " << rows << " x " << E << " x " << D;
    }
  }
}

TEST(Linear, PutsResultsInTheirPlaceOrAddsThem) {
  for_each_backend(at::kFloat, [] {
    for (const int64_t rows : {30, 700}) {
      const Tensor x = testing::random_normal({rows, 24}, 1).requires_grad_();
      const Tensor weight = testing::random_normal({40, 24}, 2).requires_grad_();
      const Tensor dy = testing::random_normal({rows, 40}, 3);
      for (const Into how : {Into::kReplace, Into::kAdd}) {
        const auto expect_put = [&](const Tensor& expected, const auto& into) {
          const Tensor before = testing::random_normal(expected.sizes(), 4);
          // Part of a larger matrix; its old contents have an effect only where the product is added to them.
          Tensor memory = at::full({expected.size(0) + 2, expected.size(1)}, 7.0);
          const Tensor place = memory.narrow(0, 1, expected.size(0));
          place.copy_(how == Into::kAdd ? before : at::full_like(before, NAN));
          into(place);
          expect_equal_products(place, how == Into::kAdd ? before + expected : expected);
          EXPECT_TRUE((memory[0] == 7).all().item().toBool() && (memory[-1] == 7).all().item().toBool());
          EXPECT_FALSE(place.requires_grad());
        };
        const Tensor a = x.detach(), w = weight.detach();
        expect_put(a.matmul(w.t()), [&](const Tensor& place) { linear_into(place, how, x, weight); });
        expect_put(dy.matmul(w), [&](const Tensor& place) { linear_input_gradient_into(place, how, dy, weight); });
        expect_put(dy.t().matmul(a), [&](const Tensor& place) { linear_weight_gradient_into(place, how, dy, x); });
      }
    }
  });
}

TEST(Linear, CanBeDifferentiatedTwice) {
  // f = sum((X W^T)^2) / 2: df/dX = X W^T W = G, and sum(G) has the gradient 1 W^T W for X.
  for_each_backend(at::kFloat, [] {
    const Tensor x = testing::random_normal({6, 8}, 1).requires_grad_();
    const Tensor weight = testing::random_normal({4, 8}, 2).requires_grad_();
    const auto second = [&](const auto& product) {
      const Tensor f = product(x, weight).square().sum() / 2;
      const Tensors first = torch::autograd::grad({f}, {x, weight}, {}, /*retain_graph=*/true, /*create_graph=*/true);
      return torch::autograd::grad({first[0].sum() + first[1].sum()}, {x, weight});
    };
    const Tensors found = second([](const Tensor& a, const Tensor& w) { return ops::linear(a, w); });
    const Tensors expected = second([](const Tensor& a, const Tensor& w) { return at::linear(a, w); });
    for (size_t i = 0; i < found.size(); ++i) expect_equal_products(found[i], expected[i]);
  });
}

TEST(Linear, KeepsOnlyWhatAGradientNeeds) {
  for_each_backend(at::kFloat, [] {
    const Tensor x = testing::random_normal({6, 8}, 1), weight = testing::random_normal({4, 8}, 2).requires_grad_();
    const auto kept = [](const Tensor& a, const Tensor& w) {
      const auto before = a.use_count();
      const Tensor y = ops::linear(a, w);
      return a.use_count() > before;
    };
    EXPECT_TRUE(kept(x, weight));
    EXPECT_FALSE(kept(x.clone().requires_grad_() * 1, weight.detach()));
  });
}

TEST(Linear, RefusesWhatDoesNotFitAsAtenDoes) {
  for_each_backend(at::kFloat, [] {
    const auto expect_refused = [](const auto& call) {
      testing::expect_throws<c10::Error>(call, "mat1 and mat2 shapes cannot be multiplied");
    };
    const Tensor x = at::ones({3, 4}), weight = at::ones({5, 6}), place = at::empty({3, 5});
    expect_refused([&] { ops::linear(x, weight); });
    expect_refused([&] { linear_input_gradient(x, weight); });
    expect_refused([&] { linear_weight_gradient(x, weight); });
    expect_refused([&] { linear_into(place, Into::kReplace, x, weight); });
    expect_refused([&] { linear_input_gradient_into(place, Into::kReplace, x, weight); });
    expect_refused([&] { linear_weight_gradient_into(place, Into::kReplace, x, weight); });
    EXPECT_ANY_THROW(linear_into(at::empty({2, 3, 5}), Into::kReplace, x, at::ones({5, 4})));
    EXPECT_ANY_THROW(linear_into(at::empty({3, 5}), Into::kAdd, at::ones({1, 4}), at::ones({5, 4})));
  });
}

}  // namespace
}  // namespace tamis::ops
