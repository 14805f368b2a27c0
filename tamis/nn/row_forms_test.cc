// The forms for single rows and numbers, which decoding uses, against the tensor forms of training.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tamis/nn/activation.h"
#include "tamis/nn/norm.h"
#include "tamis/nn/rotary.h"
#include "tamis/nn/rows.h"

namespace tamis::nn {
namespace {

using at::Tensor;

constexpr double kEps = 1e-6;

/// Largest difference as a share of the largest expected number.
double error(const Tensor& found, const Tensor& expected) {
  return (found - expected).abs().max().item<double>() / expected.abs().max().item<double>();
}

class RowForms : public ::testing::TestWithParam<int64_t> {
 protected:
  Tensor x = at::randn({GetParam()}) * 3 + 1;
  Tensor weight = at::randn({GetParam()});
  Tensor out = at::full({GetParam()}, NAN);
};

INSTANTIATE_TEST_SUITE_P(Lengths, RowForms, ::testing::Values(1, 7, 8, 24, 100, 257));

TEST_P(RowForms, OfRmsNorm) {
  rms_norm_row(x.const_data_ptr<float>(), weight.const_data_ptr<float>(), GetParam(), kEps, out.data_ptr<float>());
  EXPECT_LT(error(out, rms_norm(x, weight, kEps)), 1e-6);
}

TEST_P(RowForms, OfLayerNorm) {
  layer_norm_row(x.const_data_ptr<float>(), weight.const_data_ptr<float>(), GetParam(), kEps, out.data_ptr<float>());
  if (GetParam() == 1) {
    EXPECT_EQ(out.item<float>(), 0) << "a single number is its own mean";
  } else {
    EXPECT_LT(error(out, layer_norm(x, weight, kEps)), 2e-6);
  }
}

TEST_P(RowForms, OfUnitRowsScaled) {
  unit_row(x.const_data_ptr<float>(), GetParam(), 2.5, out.data_ptr<float>());
  EXPECT_LT(error(out, unit_rows(x) * 2.5), 1e-6);
}

TEST_P(RowForms, OfExpScaled) {
  for (const double log_scale : {-3.7, 0.0, 2.2}) {
    exp_scaled_row(x.const_data_ptr<float>(), GetParam(), log_scale, out.data_ptr<float>());
    EXPECT_LT(error(out, exp_scaled(x.view({1, 1, -1}), at::full({}, log_scale)).flatten()), 1e-6) << log_scale;
  }
}

TEST(RowForms, OfAZeroRowIsZero) {
  const Tensor x = at::zeros({9}), out = at::full({9}, NAN);
  unit_row(x.const_data_ptr<float>(), 9, 2.5, out.data_ptr<float>());
  EXPECT_TRUE(out.equal(unit_rows(x)));
}

TEST(RowForms, OfRotation) {
  constexpr int64_t kDim = 24;
  const Tensor x = at::randn({1, 1, 1, kDim});
  for (const RotaryOptions& options : {RotaryOptions{}, RotaryOptions{.theta = 5e5, .factor = 3.0},
                                       RotaryOptions{.theta = 5e5, .factor = 8.0, .llama3 = Llama3Scaling()}}) {
    Rotation rotation(kDim, options);
    for (const int64_t position : {0, 1, 17, 4099, 1'000'003}) {
      const Tensor row = x.clone();
      rotation.set_position(position);
      rotation.rotate(row.data_ptr<float>());
      EXPECT_LT(error(row, rotated(x, position, options)), 1e-6) << position;
    }
  }
}

TEST(RowForms, OfActivations) {
  const Tensor x = at::linspace(-20, 20, 801);
  const Tensor sigmoids = at::sigmoid(x), silus = at::silu(x), gelus = at::gelu(x), caps = soft_capped(x, 15);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const auto number = x[i].item<float>();
    EXPECT_NEAR(sigmoid(number), sigmoids[i].item<float>(), 1e-6);
    EXPECT_NEAR(silu(number), silus[i].item<float>(), 1e-6 * std::max(1.0f, std::abs(number)));
    EXPECT_NEAR(gelu(number), gelus[i].item<float>(), 1e-6 * std::max(1.0f, std::abs(number)));
    EXPECT_NEAR(soft_capped(number, 15), caps[i].item<float>(), 1e-6 * std::max(1.0f, std::abs(number)));
  }
}

}  // namespace
}  // namespace tamis::nn
