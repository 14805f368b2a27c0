// The blocked form of screening, which other devices run, on the CPU or TAMIS_TEST_DEVICE.

#include "tamis/ops/screening/screening_blocked.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "tamis/ops/screening/testing.h"
#include "tamis/ops/testing.h"

namespace tamis::ops {
namespace {

using testing::kInfinity;
using testing::Shape;
using testing::Tensors;

testing::Function blocked_screening(ScreeningOptions options) {
  const auto with_gate = [options = testing::on_test_device(options)](const Tensors& in) {
    ScreeningOptions mine = options;
    mine.gate = in.size() > 5 ? std::optional(in[5]) : std::nullopt;
    return mine;
  };
  return testing::differentiable({
      .forward = [=](const Tensors& in) -> Tensors {
        return {screening_blocked(in[0], in[1], in[2], in[3], in[4], with_gate(in))};
      },
      .backward = [=](const Tensors& grad, const Tensors& in) -> Tensors {
        const auto [dq, dk, dv, ds_w, ds_r, dgate] =
            screening_backward_blocked(grad[0], in[0], in[1], in[2], in[3], in[4], with_gate(in));
        Tensors gradients = {dq, dk, dv, ds_w, ds_r};
        if (in.size() > 5) gradients.push_back(dgate);
        return gradients;
      },
  });
}

at::Tensor two_documents(int64_t B, int64_t T) {
  const at::Tensor document = at::full({B, T}, 900, at::kLong);
  document.slice(1, T / 3).fill_(-3);
  if (B > 1) document.select(0, 1).slice(0, T / 2, T / 2 + 3).fill_(8);  // 900 or -3 appears again
  return document;
}

/// Blocks of 16 to 64 queries with few keys, heads that see every key, and windows in between.
const std::vector<Shape> kBlockedScreeningShapes = {
    {1, 1, 16, 64, {2, 17.3, kInfinity}, {0.05, 0.5, 0.95}},
    {2, 2, 16, 64, {2.5, kInfinity}, {0.5}},
    {2, 63, 16, 24, {2, 17.3, 40, 90.5, kInfinity}, {0.95, 0.5, 0.05}},
    {1, 130, 2, 1, {2, 30, 3000, kInfinity}, {0.05, 0.95}},
    {1, 1000, 16, 64, {2, 17.3, 64.5, 255.9, 256, 257, 700, 3000, kInfinity}, {0.5, 0.95}},
    {2, 130, 16, 24, {2, 40, kInfinity}, {0.5}, 1},
    {1, 700, 7, 33, {2.5, 40, 300, kInfinity}, {0.5, 0.95}, 77},
    {2, 700, 4, 4, std::vector<double>(8, kInfinity), {0.3, 0.6}},  // more rows than are processed together
};

/// Expects the accuracy rule without and with documents, in float32 and, of short sequences, in bfloat16.
void expect_blocked_screening_accurate(const Shape& shape, ScreeningOptions options) {
  for (const bool documents : {false, true}) {
    SCOPED_TRACE(::testing::Message() << "T " << shape.T << ", T_q " << shape.queries << ", expanded beyond "
                                      << options.expand_beyond.value_or(kInfinity) << ", documents " << documents);
    if (documents) options.document = two_documents(shape.B, shape.T);
    std::vector<Tensors> samples;
    for (uint64_t i = 0; i < (shape.T < 500 ? 4 : 1); ++i)
      samples.push_back(testing::random_inputs(shape, 70 + 100 * i));
    testing::expect_as_accurate_as_plain_once(blocked_screening(options), testing::reference_with(options), samples);
    if (shape.T >= 500) continue;
    for (Tensors& sample : samples) sample = testing::to_bfloat16(sample);
    testing::expect_as_accurate_as_plain_once(blocked_screening(options), testing::reference_with(options), samples);
  }
}

TEST(ScreeningBlocked, IsAsAccurateAsPlainTorch) {
  for (const Shape& shape : kBlockedScreeningShapes) expect_blocked_screening_accurate(shape, {});
}

TEST(ScreeningBlocked, ExpandedWindowsAreAsAccurateAsPlainTorch) {
  // Of the shapes above: some heads remain as they are, others lose their window and with it their rotation.
  expect_blocked_screening_accurate({2, 63, 16, 24, {2, 17.3, 40, 90.5, kInfinity}, {0.95, 0.5, 0.05}},
                                    {{.expand_beyond = 30.0}});
  expect_blocked_screening_accurate({1, 700, 7, 33, {2.5, 40, 300, kInfinity}, {0.5, 0.95}, 77},
                                    {{.expand_beyond = 100.0}});
}

TEST(ScreeningBlocked, InFloat64IsTheDefinition) {
  const Shape shape = {2, 150, 6, 24, {2.5, 17.3, 90, kInfinity}, {0.5, 0.95}};
  const std::vector<ScreeningOptions> all_options = {{},
                                                     {{.mipe_threshold = 20}},
                                                     {{.expand_beyond = 17.0}},
                                                     {{.tanh_norm = false}},
                                                     {{.position = "none"}},
                                                     {{.trim_power = 1}},
                                                     {{.trim_power = 3, .softmask = "linear"}},
                                                     {{.expand_beyond = 17.0, .softmask = "none"}},
                                                     {.document = two_documents(2, 150)}};
  for (const ScreeningOptions& options : all_options) {
    for (const bool gate : {true, false}) {
      Tensors in = testing::random_inputs(shape, 71);
      if (!gate) in.pop_back();
      for (at::Tensor& x : in) x = x.to(at::kDouble);
      const Tensors found = testing::outputs_and_gradients(blocked_screening(options), in);
      const Tensors exact = testing::outputs_and_gradients(testing::reference_with(options), in);
      for (size_t i = 0; i < exact.size(); ++i) {
        EXPECT_LE(testing::largest(found[i] - exact[i]), 1e-11 * testing::largest(exact[i])) << "tensor " << i;
      }
    }
  }
}

TEST(ScreeningBlocked, TakesStridedInputsAndFloat16) {
  Tensors in = testing::random_inputs({2, 70, 16, 24, {2.5, 17.3, 90, kInfinity}, {0.5, 0.95}}, 72);
  const Tensors expected = testing::outputs_and_gradients(blocked_screening({}), in);
  for (at::Tensor& x : in) x = testing::strided(x);
  EXPECT_TRUE(testing::same_bits(expected, testing::outputs_and_gradients(blocked_screening({}), in)));
  for (const size_t i : {0, 1, 2, 5}) in[i] = in[i].to(at::kHalf);
  const Tensors half = testing::outputs_and_gradients(blocked_screening({}), in);
  EXPECT_EQ(half[0].scalar_type(), at::kHalf);
  EXPECT_EQ(half[4].scalar_type(), at::kFloat);
  EXPECT_LE(testing::largest(half[0].to(at::kFloat) - expected[0]), 0.02);
}

TEST(ScreeningBlocked, KeysBeforeEveryWindowAreNotRead) {
  Tensors in = testing::random_inputs({1, 400, 16, 24, {3.9, 20}, {0.95}, 2}, 73);
  const Tensors clean = testing::outputs_and_gradients(blocked_screening({}), in);
  for (const size_t i : {1, 2}) in[i].slice(1, 0, 300).fill_(std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(testing::same_bits(clean, testing::outputs_and_gradients(blocked_screening({}), in)));
}

TEST(ScreeningBlocked, ExtremeParametersStayFinite) {
  Tensors in = testing::random_inputs({1, 130, 16, 24, {2, 2, 2, 2}, {0.5}}, 74);
  in[1] = in[0].clone();  // similarity 1 on the diagonal, up to rounding above it
  in[3].copy_(at::tensor({-30.0f, 0.0f, 60.0f, 95.0f}));
  for (const float s_r : {-95.0f, -30.0f, 0.0f, 30.0f}) {
    in[4].fill_(s_r);
    for (const at::Tensor& x : testing::outputs_and_gradients(blocked_screening({}), in)) {
      EXPECT_TRUE(x.isfinite().all().item<bool>()) << "s_r " << s_r;
    }
  }
}

TEST(ScreeningBlocked, EmptyBatchAndNoQueries) {
  for (const Shape& shape : {Shape{0, 5, 4, 3, {3.0}, {0.5}}, Shape{2, 5, 4, 3, {3.0}, {0.5}, 0}}) {
    const Tensors found = testing::outputs_and_gradients(blocked_screening({}), testing::random_inputs(shape, 75));
    EXPECT_EQ(found[0].numel(), 0);
    EXPECT_EQ(testing::largest(found[2]), 0.0);
  }
}

TEST(ScreeningBlocked, MemoryIsLinear) {
  struct Case {
    double narrow, wide;  // windows
    std::optional<double> expand_beyond;
    bool documents;
  };
  for (const Case& c : {Case{21, 21, {}, false}, Case{2000, 2000, {}, false}, Case{kInfinity, kInfinity, {}, false},
                        Case{21, 2000, {}, true}, Case{21, 2000, 100, true}}) {
    SCOPED_TRACE(::testing::Message() << "windows " << c.narrow << " and " << c.wide << ", expanded beyond "
                                      << c.expand_beyond.value_or(kInfinity) << ", documents " << c.documents);
    testing::expect_linear_memory([&](int64_t T) {
      ScreeningOptions options = {{.expand_beyond = c.expand_beyond}};
      if (c.documents) options.document = two_documents(1, T);
      const Tensors in = testing::random_inputs({1, T, 8, 8, {c.narrow, c.wide}, {0.5}}, 76);
      testing::outputs_and_gradients(blocked_screening(options), in);
    });
  }
}

}  // namespace
}  // namespace tamis::ops
