#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tamis/kernels/testing.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tamis/kernels/math_test.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per instruction set:
#include "tamis/kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {

/// out[i] = function(x[i]), 16 numbers at a time: whole vectors.
template <typename Function>
void Each(const float* x, int64_t size, float* out, const Function& function) {
  const hn::CappedTag<float, 16> d;
  for (int64_t i = 0; i < size; i += hn::MaxLanes(d)) {
    SizedVec<decltype(d)> one[1] = {hn::LoadU(d, x + i)};
    function(d, one);
    hn::StoreU(one[0], d, out + i);
  }
}

void TanhOf(const float* x, int64_t size, float* out) {
  Each(x, size, out, [](auto d, auto& v) HWY_ATTR { PreciseTanh(d, v); });
}
void RoughTanhOf(const float* x, int64_t size, float* out) {
  Each(x, size, out, [](auto d, auto& v) HWY_ATTR { PreciseTanh<Accuracy::kBFloat16>(d, v); });
}
void SigmoidOf(const float* x, int64_t size, float* out) {
  Each(x, size, out, [](auto d, auto& v) HWY_ATTR { Sigmoid(d, v); });
}
void RoughSigmoidOf(const float* x, int64_t size, float* out) {
  Each(x, size, out, [](auto d, auto& v) HWY_ATTR { Sigmoid<Accuracy::kBFloat16>(d, v); });
}
void ExpOf(const float* x, int64_t size, float* out) {
  Each(x, size, out, [](auto d, auto& v) HWY_ATTR { ExpOfNonPositive(d, v); });
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tamis::kernels {
namespace {

HWY_EXPORT(TanhOf);
HWY_EXPORT(RoughTanhOf);
HWY_EXPORT(SigmoidOf);
HWY_EXPORT(RoughSigmoidOf);
HWY_EXPORT(ExpOf);

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kUlp = 0x1p-23;
constexpr double kRough = 0x1p-11;

/// Numbers of every size and both signs, a multiple of 16 of them.
std::vector<float> sweep(bool positive) {
  std::vector<float> x;
  for (double size = 1e-30; size < 200; size *= 1.0009) {
    x.push_back(static_cast<float>(-size));
    if (positive) x.push_back(static_cast<float>(size));
  }
  while (x.size() % 16 != 0) x.push_back(0);
  return x;
}

double tanh_of(double x) {
  return std::tanh(x);
}
double sigmoid_of(double x) {
  return 1 / (1 + std::exp(-x));
}
double exp_of(double x) {
  return std::exp(x);
}

/// The largest error relative to the exact value, where that is a normal number.
template <typename Function>
double largest_error(const Function& function, double (*exact)(double), bool positive) {
  const std::vector<float> x = sweep(positive);
  std::vector<float> out(x.size());
  function(x.data(), static_cast<int64_t>(x.size()), out.data());
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double expected = exact(x[i]);
    if (std::fabs(expected) < std::exp(-86.9)) continue;
    const double error = std::fabs(out[i] - expected) / std::fabs(expected);
    if (!(error <= largest)) largest = error;  // a NaN too
  }
  return largest;
}

template <typename Function>
void expect_at(const Function& function, float x, float expected, double tolerance) {
  std::vector<float> in(16, x), out(16);
  function(in.data(), 16, out.data());
  for (const float found : out) {
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(found)) << "at " << x;
    } else {
      EXPECT_NEAR(found, expected, tolerance) << "at " << x;
    }
  }
}

TEST(Math, TanhAndSigmoidAreAsExactAsTheySay) {
  const auto tanh = [](auto... in) { HWY_DYNAMIC_DISPATCH(TanhOf)(in...); };
  const auto rough_tanh = [](auto... in) { HWY_DYNAMIC_DISPATCH(RoughTanhOf)(in...); };
  const auto sigmoid = [](auto... in) { HWY_DYNAMIC_DISPATCH(SigmoidOf)(in...); };
  const auto rough_sigmoid = [](auto... in) { HWY_DYNAMIC_DISPATCH(RoughSigmoidOf)(in...); };
  testing::for_each_target([&] {
    EXPECT_LT(largest_error(tanh, tanh_of, true), 3 * kUlp);
    EXPECT_LT(largest_error(rough_tanh, tanh_of, true), kRough);
    EXPECT_LT(largest_error(sigmoid, sigmoid_of, true), 3 * kUlp);
    EXPECT_LT(largest_error(rough_sigmoid, sigmoid_of, true), kRough);
    EXPECT_GT(largest_error(rough_tanh, tanh_of, true), 3 * kUlp) << "the rough form is the exact one";
    const float nan = std::numeric_limits<float>::quiet_NaN();
    expect_at(tanh, kInfinity, 1, kUlp);
    expect_at(tanh, -kInfinity, -1, kUlp);
    expect_at(tanh, -0.0f, 0, 0);
    expect_at(tanh, nan, nan, 0);
    expect_at(rough_tanh, kInfinity, 1, kRough);
    expect_at(rough_tanh, nan, nan, 0);
    expect_at(sigmoid, kInfinity, 1, kUlp);
    expect_at(sigmoid, -kInfinity, 0, 1e-37);
    expect_at(sigmoid, nan, nan, 0);
    expect_at(rough_sigmoid, -kInfinity, 0, 1e-37);
    expect_at(rough_sigmoid, nan, nan, 0);
  });
}

TEST(Math, ExpOfNonPositiveIsWithinAnUlpOrSoAndKeepsNaN) {
  const auto exp = [](auto... in) { HWY_DYNAMIC_DISPATCH(ExpOf)(in...); };
  testing::for_each_target([&] {
    EXPECT_LT(largest_error(exp, exp_of, false), 2 * kUlp);
    expect_at(exp, -100.0f, 0, 0);
    expect_at(exp, -kInfinity, 0, 0);
    expect_at(exp, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::quiet_NaN(), 0);
  });
}

}  // namespace
}  // namespace tamis::kernels
#endif
