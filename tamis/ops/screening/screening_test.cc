#include "tamis/ops/screening/screening.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tamis/ops/screening/screening_blocked.h"
#include "tamis/ops/screening/screening_state.h"
#include "tamis/ops/screening/testing.h"
#include "tamis/ops/testing.h"
#include "tamis/ops/window.h"

namespace tamis::ops::screening_test {
namespace {

using at::Tensor;
using testing::expect_accurate;
using testing::kInfinity;
using testing::operator_with;
using testing::random_inputs;
using testing::reference_with;
using testing::Shape;
using testing::Tensors;
using testing::to_bfloat16;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

const std::vector<double> kWidths = {2, 2.5, 17.3, 255.9, 256, 257, 3000, kInfinity};

class ScreeningShapes : public ::testing::TestWithParam<Shape> {};

INSTANTIATE_TEST_SUITE_P(Lengths, ScreeningShapes,
                         ::testing::Values(Shape{1, 1, 16, 64, kWidths, {0.05, 0.5, 0.95}},    // one token
                                           Shape{2, 2, 16, 64, kWidths, {0.5}},                //
                                           Shape{2, 63, 16, 64, kWidths, {0.95, 0.5, 0.05}},   // a partial tile
                                           Shape{1, 64, 20, 65, kWidths, {0.5, 0.95}},         // odd dimensions
                                           Shape{1, 65, 7, 33, kWidths, {0.05, 0.95}},         //
                                           Shape{1, 130, 2, 1, kWidths, {0.05, 0.5, 0.95}},    // smallest K and V
                                           Shape{1, 1000, 16, 64, kWidths, {0.5, 0.95, 0.05}}  // several panels
                                           ));

INSTANTIATE_TEST_SUITE_P(LastQueries, ScreeningShapes,
                         ::testing::Values(Shape{2, 130, 16, 64, kWidths, {0.5}, 1},
                                           Shape{1, 300, 16, 24, kWidths, {0.5, 0.95}, 77}));

TEST_P(ScreeningShapes, IsAsAccurateAsPlainTorch) {
  expect_accurate(GetParam(), 42);
}

TEST_P(ScreeningShapes, IsAsAccurateAsPlainTorchInBFloat16) {
  // The exact and the plain result start from the same rounded inputs; s_w and s_r stay float32.
  expect_accurate(GetParam(), 43, {}, to_bfloat16);
}

const Shape kSmall = {2, 70, 16, 24, {2.5, 17.3, 90, kInfinity}, {0.5, 0.95}};

TEST(Screening, OptionsAreAsAccurateAsPlainTorch) {
  expect_accurate(kSmall, 7, {}, [](Tensors in) {
    in.pop_back();  // no gate
    return in;
  });
  expect_accurate(kSmall, 8, {{.tanh_norm = false}});
  expect_accurate(kSmall, 9, {{.position = "none"}});
  expect_accurate(kSmall, 10, {{.mipe_threshold = 20}});
  expect_accurate(kSmall, 11, {{.expand_beyond = 17.0}});
  expect_accurate(kSmall, 13, {{.trim_power = 1}});
  expect_accurate(kSmall, 14, {{.trim_power = 3, .softmask = "linear"}});
  expect_accurate(kSmall, 15, {{.softmask = "none"}});
  expect_accurate(kSmall, 16, {{.trim_power = 3, .softmask = "linear"}}, to_bfloat16);
  expect_accurate(kSmall, 12, {.document = at::arange(70).floor_divide(13).expand({2, 70}).contiguous()});
}

TEST(Screening, HeadsSeeAndAcceptWhatTheirScalarsSay) {
  constexpr int64_t T = 40;
  for (const double s_w : {-3.0, 0.0, 1.25, 3.0, 3.7, 95.0}) {
    const double window = window_tokens(s_w), tensor_form = (at::full({1}, s_w, at::kDouble).exp() + 1).item<double>();
    EXPECT_NEAR(window / tensor_form, 1, 1e-15) << s_w;
    const Tensor rows = at::ones({1, T, 1, 2}, at::kDouble), scalar = at::full({1}, s_w, at::kDouble);
    const Tensor seen = reference::screening_relevance(rows, rows, scalar, scalar).softmask > 0;
    EXPECT_DOUBLE_EQ(mean_visible_keys(window, T), seen.sum().item<double>() / T) << s_w;
    EXPECT_EQ(visible_span(window, T), seen.select(2, T - 1).sum().item<int64_t>()) << s_w;
  }
  for (const double s_r : {-20.0, -1.5, 0.0, 2.0, 30.0, kInfinity}) {
    const double tensor_form = at::full({1}, s_r, at::kDouble).sigmoid().item<double>();
    EXPECT_NEAR(acceptance_width(s_r) / tensor_form, 1, 1e-15) << s_r;
    EXPECT_DOUBLE_EQ(acceptance_width(-s_r), 1 / (1 + std::exp(s_r))) << s_r;
  }
}

TEST(Screening, FixedAcceptanceOneIsAnInfiniteParameter) {
  Tensors in = random_inputs(kSmall, 8);
  in[4].fill_(kInfinity);
  const Tensors fused = testing::outputs_and_gradients(operator_with({}), in);
  EXPECT_TRUE(at::allclose(fused[0], reference_with({})(in)[0], 1e-4, 1e-5));
  EXPECT_EQ(testing::largest(fused[5]), 0.0);  // r is fixed
}

TEST(Screening, GradientsMatchFiniteDifferences) {
  for (const std::vector<double>& widths : std::vector<std::vector<double>>{{3.5, 2.2}, {40, kInfinity}}) {
    Tensors in = random_inputs({1, 5, 4, 3, widths, {0.5, 0.8}}, 9);
    for (Tensor& x : in) x = x.to(at::kDouble);
    in[1].select(1, 2).fill_(0.3);  // the gradient of a zero row is 0 by convention, not a limit
    in[0].select(1, 1).fill_(0.4);
    in[2].select(1, 0).fill_(-0.2);
    testing::expect_gradients(operator_with({}), in);
    testing::expect_gradients(operator_with({{.mipe_threshold = 5}}), in);
    testing::expect_gradients(operator_with({{.tanh_norm = false}}), in);
    testing::expect_gradients(operator_with({{.trim_power = 3, .softmask = "linear"}}), in);
    testing::expect_gradients(operator_with({{.trim_power = 1, .softmask = "none"}}), in);
    testing::expect_gradients(operator_with({.document = at::tensor({4, 4, 7, 7, 7}).view({1, 5})}), in);
  }
}

TEST(Screening, InFloat64IsTheDefinition) {
  for (const int64_t K : {2, 7, 16, 18, 20}) {  // whole tiles are transposed in vectors where K allows it
    Tensors in = random_inputs({1, 150, K, 24, {2.5, 17.3, 90, kInfinity}, {0.5, 0.95}}, 29);
    for (Tensor& x : in) x = x.to(at::kDouble);
    testing::for_each_target([&] {
      const Tensors found = testing::outputs_and_gradients(operator_with({}), in);
      const Tensors exact = testing::outputs_and_gradients(reference_with({}), in);
      for (size_t i = 0; i < exact.size(); ++i) {
        EXPECT_LT(testing::largest(found[i] - exact[i]), 1e-11 * testing::largest(exact[i])) << "K " << K << ", " << i;
      }
    });
  }
}

/// One query and one key, whose value is accepted with weight n: |h| = n.
Tensors weight_of_one_pair(double n, uint64_t seed) {
  const double s = (1 + std::sqrt(n)) / 2;  // r = 1/2: Trim is (2 s - 1)^2
  Tensor q = at::zeros({1, 1, 1, 16}, at::kDouble), k = at::zeros_like(q);
  q.select(-1, 2).fill_(1);
  k.select(-1, 2).fill_(s);
  k.select(-1, 3).fill_(std::sqrt(1 - s * s));
  return {q,
          k,
          testing::random_normal({1, 1, 1, 40}, seed).to(at::kDouble),
          at::full({1}, 3.0, at::kDouble),
          at::zeros({1}, at::kDouble),
          testing::random_normal({1, 1, 1, 40}, seed + 1).to(at::kDouble)};
}

TEST(Screening, ShortSumsOfValuesHaveExactGradients) {
  // TanhNorm's slope is taken as constant near 0, and is not computed where u = h.
  for (const double n : {1e-6, 2e-4, 4e-4, 9e-3, 1.1e-2, 0.3}) {
    std::vector<Tensors> samples;
    for (uint64_t seed = 0; seed < 8; ++seed) {
      Tensors in = weight_of_one_pair(n, 30 + 2 * seed);
      for (Tensor& x : in) x = x.to(at::kFloat);
      samples.push_back(in);
    }
    SCOPED_TRACE(n);
    testing::expect_as_accurate_as_plain(operator_with({}), reference_with({}), samples);
  }
  for (const double n : {1e-9, 9e-5, 1.1e-4, 0.3}) {
    const Tensors in = weight_of_one_pair(n, 31);
    const Tensors found = testing::outputs_and_gradients(operator_with({}), in);
    const Tensors exact = testing::outputs_and_gradients(reference_with({}), in);
    for (size_t i = 0; i < exact.size(); ++i) {
      EXPECT_LE(testing::largest(found[i] - exact[i]), 1e-10 * testing::largest(exact[i])) << n << ", tensor " << i;
    }
  }
}

TEST(Screening, LongChunksShareTheirBoundaryKeys) {
  // Longer than a chunk of the backward pass (1,024 queries at this window), so that halo and tail meet.
  expect_accurate({1, 2200, 4, 8, {100, 30.5}, {0.5}}, 10);
}

TEST(Screening, StridedInputsGiveTheSameBits) {
  const Tensors in = random_inputs(kSmall, 11);
  Tensors strided, transposed = in;
  for (const Tensor& x : in) strided.push_back(testing::strided(x));
  for (const size_t i : {0, 1, 2, 5}) transposed[i] = in[i].transpose(1, 2).contiguous().transpose(1, 2);
  const Tensors expected = testing::outputs_and_gradients(operator_with({}), in);
  EXPECT_TRUE(testing::same_bits(expected, testing::outputs_and_gradients(operator_with({}), strided)));
  EXPECT_TRUE(testing::same_bits(expected, testing::outputs_and_gradients(operator_with({}), transposed)));
}

TEST(Screening, ThreadsDoNotChangeBits) {
  for (const Tensors& in : {random_inputs({2, 700, 16, 64, kWidths, {0.5, 0.95}}, 12),
                            to_bfloat16(random_inputs({1, 1500, 16, 64, {2, 40, 300}, {0.5}}, 13))}) {
    Tensors one, four;
    {
      const testing::Threads threads(1);
      one = testing::outputs_and_gradients(operator_with({}), in);
    }
    const testing::Threads threads(4);
    EXPECT_TRUE(testing::same_bits(one, testing::outputs_and_gradients(operator_with({}), in)));
  }
}

TEST(Screening, EmptyBatchAndNoQueries) {
  const Tensors in = random_inputs({0, 5, 4, 3, {3.0}, {0.5}}, 14);
  EXPECT_EQ(testing::outputs_and_gradients(operator_with({}), in)[0].sizes(), at::IntArrayRef({0, 5, 1, 3}));
  const Tensors none =
      testing::outputs_and_gradients(operator_with({}), random_inputs({2, 5, 4, 3, {3.0}, {0.5}, 0}, 14));
  EXPECT_EQ(none[0].sizes(), at::IntArrayRef({2, 0, 1, 3}));
  EXPECT_EQ(testing::largest(none[2]), 0.0);
  EXPECT_EQ(testing::largest(none[3]), 0.0);
}

TEST(Screening, LastQueriesAreTheEndOfTheFullResult) {
  const Tensors in = random_inputs({1, 300, 16, 24, kWidths, {0.5, 0.95}}, 15);
  const Tensor full = operator_with({})(in)[0];
  for (const int64_t queries : {1, 16, 37, 299}) {
    const Tensors last = {in[0].slice(1, 300 - queries), in[1], in[2], in[3], in[4], in[5].slice(1, 300 - queries)};
    const Tensor found = operator_with({})(last)[0];
    EXPECT_LE(testing::largest(found - full.slice(1, 300 - queries)), 1e-5 * testing::largest(full));
  }
}

TEST(Screening, DocumentsAreScreenedAsIfAlone) {
  const Tensors in = random_inputs({1, 90, 16, 24, {2.5, 17.3, kInfinity}, {0.5}}, 16);
  Tensor document = at::full({1, 90}, 900, at::kLong);
  document.slice(1, 41).fill_(-3);
  const Tensor packed = operator_with({.document = document})(in)[0];
  const Tensors second = {in[0].slice(1, 41), in[1].slice(1, 41), in[2].slice(1, 41), in[3], in[4], in[5].slice(1, 41)};
  EXPECT_LE(testing::largest(packed.slice(1, 41) - operator_with({})(second)[0]), 1e-6);
}

TEST(Screening, ExpandedWindowsAcceptTheWholePast) {
  // In the limit of an infinite window and acceptance of everything, h is the plain sum of (1 + s)^2 / 4 values.
  Tensors in = random_inputs({1, 80, 8, 5, {30}, {0.5}}, 17);
  in[4].fill_(kInfinity);
  const Tensors expanded = {in[0], in[1], in[2], in[3], in[4]};
  const auto unit = [](const Tensor& x) { return x / x.norm(2, {-1}, true).clamp_min(1e-12); };
  const Tensor s = at::einsum("bihd,bjhd->bhij", {unit(in[0]), unit(in[1])});
  const Tensor expected = at::einsum("bhij,bjhv->bihv", {s.clamp_min(0).square().tril(), unit(in[2])});
  EXPECT_LE(testing::largest(operator_with({{.expand_beyond = 20.0, .tanh_norm = false}})(expanded)[0] - expected),
            2e-5);
}

TEST(Screening, KeysOutsideTheWindowAreNeverTouched) {
  // Two queries at the end, a window of 3.9: keys before the last five hold NaN.
  Tensors in = random_inputs({1, 100, 16, 24, {3.9}, {0.95}, 2}, 18);
  const Tensors clean = testing::outputs_and_gradients(operator_with({}), in);
  in[1].slice(1, 0, 95).fill_(kNaN);
  in[2].slice(1, 0, 95).fill_(kNaN);
  EXPECT_TRUE(testing::same_bits(clean, testing::outputs_and_gradients(operator_with({}), in)));
}

TEST(Screening, RejectedKeysNeverReadTheirValue) {
  Tensors in = random_inputs({1, 200, 16, 24, {50.5, kInfinity}, {0.3}}, 19);
  in[1].select(1, 77).copy_(-in[1].select(1, 77));
  const auto map = reference::screening_relevance(in[0], in[1], in[3], in[4]);
  const Tensor accepted = (map.trim * map.softmask).amax(2) > 0;  // [B, H, T]: some query accepts the key
  const Tensor rejected = accepted.logical_not().transpose(1, 2).unsqueeze(-1);
  ASSERT_GT(rejected.sum().item().toLong(), 0);
  const Tensors clean = testing::outputs_and_gradients(operator_with({}), in);
  in[2] = in[2].masked_fill(rejected, kNaN);
  testing::for_each_target([&] {
    const Tensors found = testing::outputs_and_gradients(operator_with({}), in);
    for (const Tensor& x : found) EXPECT_TRUE(x.isfinite().all().item().toBool());
    EXPECT_LE(testing::largest(found[0] - clean[0]), 1e-5);
    EXPECT_LE(testing::largest(found[3] - clean[3]), 1e-4 * testing::largest(clean[3]));
  });
}

TEST(Screening, NaNShowsInTheResult) {
  testing::for_each_target([] {
    for (const size_t argument : {0, 1}) {
      Tensors in = random_inputs(kSmall, 26);
      in[argument].select(1, 40).fill_(kNaN);  // of q or k
      const Tensor out = operator_with({})(in)[0];
      EXPECT_TRUE(out.select(1, 40).isnan().all().item().toBool()) << "argument " << argument;
      EXPECT_TRUE(out.slice(1, 0, 40).isfinite().all().item().toBool()) << "argument " << argument;
    }
    Tensors raw = random_inputs(kSmall, 25);
    raw[2].index_put_({0, 40, 0, 3}, kNaN);  // a NaN in one component makes the whole unit vector NaN
    const Tensor bare = operator_with({{.tanh_norm = false}})(raw)[0];
    EXPECT_TRUE(bare[0].select(1, 0)[40].isnan().all().item().toBool()) << "v";
    Tensors gated = random_inputs(kSmall, 28);
    gated[5].select(1, 40).fill_(kNaN);
    const Tensor nan = operator_with({})(gated)[0].isnan();
    EXPECT_TRUE(nan.select(1, 40).all().item().toBool()) << "gate";
    EXPECT_EQ(nan.sum().item().toLong(), nan.select(1, 40).numel()) << "gate";
    Tensors in = random_inputs(kSmall, 27);
    in[4].fill_(kNaN);  // s_r
    EXPECT_TRUE(operator_with({})(in)[0].isnan().any().item().toBool());
  });
}

TEST(Screening, ZeroRowsGiveZeroGradients) {
  const Tensors in = random_inputs(kSmall, 20);  // row 1 of q, 2 of k and 0 of v are zero
  const Tensors found = testing::outputs_and_gradients(operator_with({}), in);
  EXPECT_EQ(testing::largest(found[1].select(1, 1)), 0.0);
  EXPECT_EQ(testing::largest(found[2].select(1, 2)), 0.0);
  EXPECT_EQ(testing::largest(found[3].select(1, 0)), 0.0);
}

TEST(Screening, ExtremeParametersStayFinite) {
  Tensors in = random_inputs({1, 130, 16, 24, {2, 2, 2, 2}, {0.5}}, 21);
  in[1] = in[0].clone();  // similarity 1 on the diagonal, up to rounding above it
  in[3].copy_(at::tensor({-30.0f, 0.0f, 60.0f, 95.0f}));
  for (const float s_r : {-30.0f, 0.0f, 30.0f}) {
    in[4].fill_(s_r);
    for (const Tensor& x : testing::outputs_and_gradients(operator_with({}), in)) {
      EXPECT_TRUE(x.isfinite().all().item().toBool()) << "s_r " << s_r;
    }
  }
}

TEST(Screening, AWindowOfOneTokenSeesOnlyIt) {
  Tensors in = random_inputs({1, 130, 16, 24, {2, 2}, {0.97}}, 24);
  in[3].copy_(at::tensor({-40.0f, -std::numeric_limits<float>::infinity()}));  // w = 1 exactly
  const Tensor exact = reference_with({})(in)[0];
  testing::for_each_target([&] {
    const Tensors found = testing::outputs_and_gradients(operator_with({}), in);
    EXPECT_LE(testing::largest(found[0] - exact), 1e-5 * testing::largest(exact));
    for (const Tensor& x : found) EXPECT_TRUE(x.isfinite().all().item().toBool());
  });
  ScreeningState state(in[3], in[4], 16, 24);
  const auto slice = [&](size_t i, int64_t first, int64_t last) { return in[i].slice(1, first, last); };
  Tensors parts;
  for (const auto& [first, last] : {std::pair(0, 100), std::pair(100, 101), std::pair(101, 130)}) {
    parts.push_back(
        state.step(slice(0, first, last), slice(1, first, last), slice(2, first, last), slice(5, first, last)));
  }
  EXPECT_LE(testing::largest(at::cat(parts, 1) - exact), 1e-5 * testing::largest(exact));
}

TEST(Screening, FarPositionsKeepTheirPrecision) {
  // MiPE in float32 would lose 5e-3 of similarity at these positions.
  const Tensors in = random_inputs({1, 131'100, 16, 4, {200.5, 30}, {0.2}, 40}, 22);
  Tensors exact_in;
  for (const Tensor& x : in) exact_in.push_back(x.to(at::kDouble));
  const Tensor exact = reference_with({})(exact_in)[0];
  EXPECT_LE(testing::largest(operator_with({})(in)[0].to(at::kDouble) - exact), 2e-5 * testing::largest(exact));
}

TEST(Screening, OutputsDoNotDependOnWhatMemoryHeld) {
  const Tensors in = random_inputs(kSmall, 23);
  const Tensors expected = testing::outputs_and_gradients(operator_with({}), in);
  for (int round = 0; round < 3; ++round) {
    // Freed blocks full of NaN, of the sizes that the operator will allocate.
    for (const Tensor& x : in) at::empty_like(x).fill_(kNaN);
    EXPECT_TRUE(testing::same_bits(expected, testing::outputs_and_gradients(operator_with({}), in)));
  }
}

TEST(Screening, BadArgumentsAreNamed) {
  const Tensors in = random_inputs({2, 6, 4, 3, {3, 4}, {0.5}}, 24);
  const auto expect_error = [&](size_t argument, const Tensor& bad, const std::string& text) {
    Tensors arguments = in;
    arguments[argument] = bad;
    testing::expect_throws<c10::ValueError>([&] { operator_with({})(arguments); }, text);
  };
  expect_error(0, in[0].select(0, 0), "screening: q must have 4 dimensions");
  expect_error(0, in[0].slice(3, 0, 1), "K >= 2");
  expect_error(0, in[0].to(at::kLong), "floating point");
  expect_error(1, in[1].slice(1, 0, 5),
               "screening: k must have the shape of q [2, 6, 2, 4] or more positions, but has [2, 5, 2, 4]");
  expect_error(1, in[1].to(at::kDouble), "screening: k must have the dtype of q");
  expect_error(2, in[2].slice(0, 0, 1), "screening: v must have the shape of k");
  expect_error(3, in[3].slice(0, 0, 1), "screening: s_w must have the shape [2]");
  expect_error(4, in[4].to(at::kBFloat16), "screening: s_r must be float32 or float64");
  expect_error(5, in[5].slice(3, 0, 2), "screening: gate must have the shape [2, 6, 2, 3]");
  const auto expect_option_error = [&](const ScreeningOptions& options, const std::string& text) {
    testing::expect_throws<c10::ValueError>([&] { operator_with(options)(in); }, text);
  };
  expect_option_error({{.mipe_threshold = 0}}, "mipe_threshold must be positive");
  expect_option_error({{.position = "rope"}}, "position must be \"mipe\" or \"none\", but is \"rope\"");
  expect_option_error({{.trim_power = 4}}, "trim_power must be 1, 2 or 3, but is 4");
  expect_option_error({{.softmask = "sine"}}, "softmask must be \"cosine\", \"linear\" or \"none\", but is \"sine\"");
  expect_option_error({.document = at::zeros({2, 5}, at::kLong)}, "document must have the shape [2, 6]");
  expect_option_error({.document = at::zeros({2, 6})}, "document must hold integers");
}

TEST(Screening, OtherDtypesUseTheBlockedForm) {
  Tensors in = random_inputs(kSmall, 25);
  for (const size_t i : {0, 1, 2, 5}) in[i] = in[i].to(at::kHalf);
  const Tensors found = testing::outputs_and_gradients(operator_with({}), in);
  EXPECT_EQ(found[0].scalar_type(), at::kHalf);
  EXPECT_TRUE(testing::same_bits(found[0], screening_blocked(in[0], in[1], in[2], in[3], in[4], {.gate = in[5]})));
  EXPECT_LE(testing::largest(found[0] - reference_with({})(in)[0]), 2e-3);
}

}  // namespace
}  // namespace tamis::ops::screening_test
