#include "tamis/ops/screening/screening_functions.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "tamis/ops/screening/screening.h"
#include "tamis/ops/window.h"

namespace tamis::ops {
namespace {

using at::Tensor;

Tensor number(double x) {
  return at::full({1}, x, at::kDouble);
}

/// s_w of a window.
Tensor scalar_of_window(double w) {
  return number(std::log(w - 1));
}

Tensor scalar_of_acceptance(double r) {
  return number(std::log(r / (1 - r)));
}

TEST(ScreeningFunctions, MipeRotatesAsInPlainTorch) {
  constexpr double kThreshold = 40;
  for (const double w : {1.001, 2.5, 17.3, 39.9, 40.1, 300.0}) {
    SCOPED_TRACE(w);
    const Tensor s_w = scalar_of_window(w).set_requires_grad(true);
    // Equal rows in the rotated plane: their similarity is the cosine of the angle between their positions.
    const Tensor rows = at::zeros({1, 4, 1, 3}, at::kDouble);
    rows.select(-1, 0).fill_(1);
    const Tensor similarity =
        reference::screening_relevance(rows, rows, s_w, number(0), {{.mipe_threshold = kThreshold}}).similarity;
    for (int64_t i = 0; i < 4; ++i) {
      const double seen = std::ceil(w) > static_cast<double>(i) ? 1 : 0;  // 0 stands for a key outside the window
      const double angle = static_cast<double>(i) * mipe_step(w, kThreshold);
      const Tensor s = similarity.select(2, i).select(2, 0).sum();
      EXPECT_NEAR(s.item<double>(), seen * std::cos(angle), 1e-14) << i;
      const Tensor gradient = torch::autograd::grad({s}, {s_w}, {}, /*retain_graph=*/true)[0];
      EXPECT_NEAR(gradient.item<double>(),
                  -seen * std::sin(angle) * static_cast<double>(i) * mipe_step_slope(w, kThreshold), 1e-13)
          << i;
    }
  }
}

TEST(ScreeningFunctions, PhiFallsFromOneToZeroAtTheThreshold) {
  constexpr double kThreshold = 256;
  EXPECT_EQ(mipe_phi(0, kThreshold), 1);
  EXPECT_NEAR(mipe_phi(128, kThreshold), 0.5, 1e-15);
  for (const double w : {256.0, 257.0, HUGE_VAL}) {
    EXPECT_EQ(mipe_phi(w, kThreshold), 0) << w;
    EXPECT_EQ(mipe_phi_slope(w, kThreshold), 0) << w;
    EXPECT_EQ(mipe_step(w, kThreshold), 0) << w;
    EXPECT_EQ(mipe_step_slope(w, kThreshold), 0) << w;
  }
  for (const double w : {2.0, 100.0, 255.0}) {
    const double difference = (mipe_phi(w + 1e-4, kThreshold) - mipe_phi(w - 1e-4, kThreshold)) / 2e-4;
    EXPECT_NEAR(mipe_phi_slope(w, kThreshold), difference, 1e-9) << w;
    const Tensor of_tensor = mipe_phi_below_threshold(number(w), kThreshold);
    EXPECT_NEAR(of_tensor.item<double>(), mipe_phi(w, kThreshold), 1e-15) << w;
  }
}

TEST(ScreeningFunctions, TrimIsThatOfPlainTorch) {
  for (const double r : {0.05, 0.5, 0.95}) {
    for (const double s : {-1.0, 0.0, 0.04, 0.3, 0.7, 0.97, 1.0}) {
      const Tensor q = at::tensor({1.0, 0.0}, at::kDouble).view({1, 1, 1, 2});
      const Tensor k = at::tensor({s, std::sqrt(1 - s * s)}, at::kDouble).view({1, 1, 1, 2});
      const Tensor expected =
          reference::screening_relevance(q, k, scalar_of_window(9), scalar_of_acceptance(r), {{.position = "none"}})
              .trim;
      EXPECT_NEAR(trim(s, r), expected.item<double>(), 1e-14 / r) << "r " << r << ", s " << s;
    }
  }
}

TEST(ScreeningFunctions, SoftmaskIsThatOfPlainTorch) {
  constexpr int64_t T = 12;
  for (const double w : {1.001, 2.0, 5.5, 11.0, 60.0}) {
    SCOPED_TRACE(w);
    const Tensor s_w = scalar_of_window(w).set_requires_grad(true);
    const double rounded_w = window_tokens(s_w.item<double>());  // exp(log(w - 1)) + 1
    const Tensor rows = at::ones({1, T, 1, 2}, at::kDouble);
    const Tensor mask =
        reference::screening_relevance(rows, rows, s_w, number(0)).softmask.view({T, T}).select(0, T - 1);
    for (int64_t distance = 0; distance < T; ++distance) {
      const auto d = static_cast<double>(distance);
      const Tensor m = mask[T - 1 - distance];
      EXPECT_NEAR(softmask(d, rounded_w), m.item<double>(), 1e-14) << d;
      const Tensor gradient = torch::autograd::grad({m}, {s_w}, {}, /*retain_graph=*/true)[0];
      EXPECT_NEAR(softmask_slope(d, rounded_w), gradient.item<double>(), 1e-13) << d;
    }
  }
  EXPECT_EQ(softmask(1e6, INFINITY), 1);
}

TEST(ScreeningFunctions, TanhNormIsThatOfPlainTorch) {
  for (const double trim_root : {0.0, 1e-3, 0.3, 0.8, 1.0}) {
    const double r = 0.5, s = 1 - r * (1 - trim_root), length = trim(s, r);
    const Tensor q = at::tensor({1.0, 0.0}, at::kDouble).view({1, 1, 1, 2});
    const Tensor k = at::tensor({s, std::sqrt(1 - s * s)}, at::kDouble).view({1, 1, 1, 2});
    const Tensor v = at::tensor({3.0, -4.0, 12.0}, at::kDouble).view({1, 1, 1, 3});
    const Tensor u =
        reference::screening(q, k, v, scalar_of_window(9), scalar_of_acceptance(r), {{.position = "none"}});
    EXPECT_NEAR(tanh_norm(length), u.norm().item<double>(), 1e-14) << length;
  }
}

TEST(ScreeningFunctions, ScalarsAreThoseOfTensors) {
  for (const double s_w : {-3.0, 0.0, 5.5}) {
    EXPECT_NEAR(window_tokens(number(s_w)).item<double>(), window_tokens(s_w), 1e-13) << s_w;
  }
  for (const double s_r : {-20.0, 0.0, 3.0}) {
    EXPECT_NEAR(inverse_acceptance_width(s_r) * acceptance_width(s_r), 1, 1e-15) << s_r;
  }
  EXPECT_EQ(inverse_acceptance_width(-1000), 1e30);
  for (const double r : {1e-9, 0.02, 0.5, 0.97}) {
    EXPECT_NEAR(acceptance_width(acceptance_scalar(r)) / r, 1, 1e-14) << r;
  }
}

}  // namespace
}  // namespace tamis::ops
