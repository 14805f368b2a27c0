#include "tamis/ops/softmax_attention/softmax_attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "tamis/ops/softmax_attention/softmax_attention_scale.h"
#include "tamis/ops/testing.h"

namespace tamis::ops::softmax_attention_test {
namespace {

using at::Tensor;
using testing::Tensors;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Shape {
  int64_t B, T, H, K, V;
  int64_t queries = -1;  // T_q; -1: all T
  std::optional<int64_t> window;
  bool scales = false;     // log_scale and log_bias
  bool documents = false;  // three of different lengths, one of them in two pieces
  bool strict = false;
};

std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << "B" << s.B << "_T" << s.T << "_H" << s.H << "_K" << s.K << "_V" << s.V << "_q" << s.queries << "_w"
             << s.window.value_or(0) << (s.scales ? "_scales" : "") << (s.documents ? "_documents" : "")
             << (s.strict ? "_strict" : "");
}

Tensor three_documents(int64_t B, int64_t T) {
  Tensor document = at::full({B, T}, 7, at::kLong);
  document.slice(1, T / 5, T / 2).fill_(3);
  document.slice(1, T / 2, 2 * T / 3).fill_(-1);
  return document;  // 7, 3, -1, 7
}

SoftmaxAttentionOptions options_of(const Shape& shape) {
  SoftmaxAttentionOptions options{.window = shape.window, .strict = shape.strict};
  if (shape.documents) options.document = three_documents(shape.B, shape.T);
  return options;
}

/// q, k, v and, with scales, log_scale and log_bias.
Tensors random_inputs(const Shape& shape, uint64_t seed, at::ScalarType dtype = at::kFloat) {
  const int64_t queries = shape.queries < 0 ? shape.T : shape.queries;
  Tensors in = {testing::random_normal({shape.B, queries, shape.H, shape.K}, seed, dtype),
                testing::random_normal({shape.B, shape.T, shape.H, shape.K}, seed + 1, dtype),
                testing::random_normal({shape.B, shape.T, shape.H, shape.V}, seed + 2, dtype)};
  if (shape.scales) {
    in.push_back(testing::random_normal({shape.H}, seed + 3) * 0.2 + 0.3);
    in.push_back(testing::random_normal({shape.H}, seed + 4) * 0.5);
  }
  return in;
}

template <typename Operator>
testing::Function bound(const Operator& op, const SoftmaxAttentionOptions& options) {
  return [op, options](const Tensors& in) -> Tensors {
    SoftmaxAttentionOptions mine = options;
    if (in.size() > 3) mine.log_scale = in[3];
    if (in.size() > 4) mine.log_bias = in[4];
    return {op(in[0], in[1], in[2], mine)};
  };
}

testing::Function fused(const SoftmaxAttentionOptions& options) {
  return bound([](auto&&... in) { return softmax_attention(in...); }, options);
}

testing::Function defined(const SoftmaxAttentionOptions& options) {
  return bound([](auto&&... in) { return reference::softmax_attention(in...); }, options);
}

std::vector<Tensors> samples(const Shape& shape, at::ScalarType dtype) {
  std::vector<Tensors> result;
  for (uint64_t i = 0; i < 4; ++i) result.push_back(random_inputs(shape, 42 + 100 * i, dtype));
  return result;
}

class SoftmaxAttentionTest : public ::testing::TestWithParam<Shape> {};

INSTANTIATE_TEST_SUITE_P(Shapes, SoftmaxAttentionTest,
                         ::testing::Values(Shape{1, 1, 1, 16, 16}, Shape{2, 64, 2, 16, 32}, Shape{1, 131, 3, 20, 65},
                                           Shape{2, 200, 2, 64, 64, 37}, Shape{1, 300, 2, 32, 32, -1, 1},
                                           Shape{1, 300, 2, 32, 32, -1, 17}, Shape{2, 257, 2, 24, 8, 90, 64},
                                           Shape{1, 190, 2, 16, 16, -1, 100, true},
                                           Shape{2, 150, 3, 16, 16, 80, {}, true},
                                           Shape{2, 210, 2, 16, 16, -1, {}, true, true},
                                           Shape{2, 210, 2, 16, 16, 70, 40, true, true}, Shape{1, 1100, 1, 8, 8},
                                           Shape{2, 131, 2, 20, 24, -1, {}, false, false, true},
                                           Shape{1, 300, 2, 32, 32, -1, 1, true, false, true},
                                           Shape{1, 300, 2, 16, 16, 90, 64, true, false, true},
                                           Shape{2, 210, 2, 16, 16, -1, {}, true, true, true},
                                           Shape{2, 210, 2, 16, 16, 70, 40, true, true, true}));

TEST_P(SoftmaxAttentionTest, IsAsAccurateAsPlainTorch) {
  const SoftmaxAttentionOptions options = options_of(GetParam());
  testing::expect_as_accurate_as_plain(fused(options), defined(options), samples(GetParam(), at::kFloat));
}

TEST_P(SoftmaxAttentionTest, IsAsAccurateAsPlainTorchFromBFloat16) {
  const SoftmaxAttentionOptions options = options_of(GetParam());
  testing::expect_as_accurate_as_plain(fused(options), defined(options), samples(GetParam(), at::kBFloat16));
}

TEST_P(SoftmaxAttentionTest, HasTheSameBitsForAnyThreadsAndStrides) {
  const SoftmaxAttentionOptions options = options_of(GetParam());
  Tensors in = random_inputs(GetParam(), 44);
  const auto run = [&](int threads) {
    const testing::Threads limit(threads);
    return testing::outputs_and_gradients(fused(options), in);
  };
  const Tensors one = run(1);
  EXPECT_TRUE(testing::same_bits(one, run(4)));
  for (size_t i = 0; i < 3; ++i) in[i] = testing::strided(in[i]);
  EXPECT_TRUE(testing::same_bits(one, run(2)));
}

TEST_P(SoftmaxAttentionTest, ChunksGiveTheWhole) {
  const Shape& shape = GetParam();
  const SoftmaxAttentionOptions options = options_of(shape);
  const Tensors in = random_inputs({shape.B, shape.T, shape.H, shape.K, shape.V, -1, shape.window, shape.scales}, 45);
  const Tensor whole = fused(options)(in)[0];
  for (const int64_t chunk : {int64_t{1}, int64_t{50}}) {
    for (int64_t first = 0; first < shape.T; first += chunk * 13) {  // some of the chunks
      const int64_t last = std::min(first + chunk, shape.T);
      Tensors part = in;
      part[0] = in[0].slice(1, first, last);
      part[1] = in[1].slice(1, 0, last);
      part[2] = in[2].slice(1, 0, last);
      SoftmaxAttentionOptions mine = options;
      if (mine.document) mine.document = mine.document->slice(1, 0, last);
      const Tensor found = fused(mine)(part)[0];
      EXPECT_LE(testing::largest(found - whole.slice(1, first, last)), 1e-5 * testing::largest(whole));
    }
  }
}

TEST(SoftmaxAttention, GradientsOfTheDefinitionMatchFiniteDifferences) {
  Tensors in = random_inputs({1, 7, 2, 3, 2, 5, 4, true}, 46);
  for (Tensor& x : in) x = x.to(at::kDouble);
  testing::expect_gradients(defined({.window = 4}), in);
}

TEST(SoftmaxAttention, EqualsTorchsOwn) {
  const Tensors in = random_inputs({2, 130, 3, 16, 16}, 47);
  const Tensor expected = at::scaled_dot_product_attention(in[0].transpose(1, 2), in[1].transpose(1, 2),
                                                           in[2].transpose(1, 2), std::nullopt, 0.0, true)
                              .transpose(1, 2);
  EXPECT_LE(testing::largest(softmax_attention(in[0], in[1], in[2]) - expected), 2e-6);
}

TEST(SoftmaxAttention, ScaleOfOneOverTheMeanLogarithmIsSoftmaxOnAverage) {
  // s = 1 / mean ln n, as in variant (e) of the paper: for T 1024 that is 0.16847.
  const Tensor n = visible_keys({}, 1024, at::zeros({1, 1024, 1, 1}));
  EXPECT_NEAR(1 / n.to(at::kDouble).log().mean().item<double>(), 0.16847, 1e-5);
}

TEST(SoftmaxAttention, CountsTheKeysThatAQuerySees) {
  const Tensor k = at::zeros({2, 8, 1, 1});
  const auto n = [&](const SoftmaxAttentionOptions& options, int64_t queries) {
    const Tensor found = visible_keys(options, queries, k).select(0, 0).contiguous();
    return std::vector<int64_t>(found.const_data_ptr<int64_t>(), found.const_data_ptr<int64_t>() + found.numel());
  };
  using Numbers = std::vector<int64_t>;
  EXPECT_EQ(n({}, 8), (Numbers{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(n({.window = 3}, 5), (Numbers{3, 3, 3, 3, 3}));
  EXPECT_EQ(n({.key_start = 10}, 2), (Numbers{17, 18}));
  const Tensor document = at::tensor({5, 5, 2, 2, 2, 5, 1, 2}).expand({2, 8});
  EXPECT_EQ(n({.document = document}, 8), (Numbers{1, 2, 1, 2, 3, 3, 1, 4}));
  EXPECT_EQ(n({.key_start = 10, .document = document}, 8), (Numbers{11, 12, 1, 2, 3, 13, 1, 4}));
  EXPECT_EQ(n({.window = 2, .document = document}, 4), (Numbers{2, 2, 1, 2}));
  EXPECT_EQ(n({.strict = true}, 8), (Numbers{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(n({.window = 3, .strict = true, .document = document}, 8), (Numbers{0, 1, 0, 1, 2, 2, 0, 3}));
  const Tensor one = at::full({1, 100}, 4, at::kLong), many = at::zeros({1, 100, 1, 1});
  EXPECT_TRUE(visible_keys({.document = one}, 100, many).equal(visible_keys({}, 100, many)));
}

TEST(SoftmaxAttention, QueryScalesOfNumbersAreThoseOfTensors) {
  const Tensor q = at::zeros({1, 70, 2, 1}), s_H = at::tensor({0.43f, -2.0f}), b_H = at::tensor({1.5f, 0.0f});
  for (const bool strict : {false, true}) {
    const SoftmaxAttentionOptions options = {.window = 50, .strict = strict, .log_scale = s_H, .log_bias = b_H};
    const Tensor n_T = visible_keys(options, 70, q)[0], scale_TH = (*query_scale(options, q, q))[0];
    for (int64_t t = 0; t < 70; ++t) {
      for (int64_t h = 0; h < 2; ++h) {
        const float found = query_scale(s_H[h].item<float>(), b_H[h].item<float>(), n_T[t].item<int64_t>());
        EXPECT_NEAR(found, scale_TH[t][h].item<float>(), 1e-6) << t << " " << h;
      }
    }
  }
}

TEST(SoftmaxAttention, PositionScaleContinuesAsItsFit) {
  const Tensor p = at::arange(1, 101).to(at::kFloat).log() * 0.7 + 0.2;
  const Tensor n = at::tensor({1, 50, 100, 101, 1000, 100000}, at::kLong).unsqueeze(0);
  const Tensor expected = n.to(at::kDouble).log() * 0.7 + 0.2;
  EXPECT_LE(testing::largest(position_scale_at(p, n).to(at::kDouble) - expected), 1e-5);
  EXPECT_LE(testing::largest(position_scale_at(at::ones({1}), n) - 1), 1e-6);  // one entry: constant
}

TEST(SoftmaxAttention, PositionScaleIsLearned) {
  const Tensors in = random_inputs({1, 120, 4, 16, 8, -1, {}, true}, 48);
  const Tensor p = testing::random_normal({120}, 49).abs();
  const auto with_p = [&](const auto& op) {
    return [&, op](const Tensors& x) -> Tensors {
      return {
          op(x[0], x[1], x[2], SoftmaxAttentionOptions{.log_scale = x[3], .log_bias = x[4], .position_scale = x[5]})};
    };
  };
  Tensors all = in;
  all.push_back(p);
  testing::expect_as_accurate_as_plain(with_p([](auto&&... x) { return softmax_attention(x...); }),
                                       with_p([](auto&&... x) { return reference::softmax_attention(x...); }), all);
}

TEST(SoftmaxAttention, StrictIsTheNonStrictResultOverTheKeysBefore) {
  for (const std::optional<int64_t> window : {std::optional<int64_t>(), std::optional<int64_t>(17)}) {
    const Tensors in = random_inputs({1, 150, 2, 16, 8, -1, window, true}, 60);
    const Tensor found = fused({.window = window, .strict = true})(in)[0];
    const Tensors before = {in[0].slice(1, 1), in[1].slice(1, 0, 149), in[2].slice(1, 0, 149), in[3], in[4]};
    EXPECT_EQ(testing::largest(found.select(1, 0)), 0.0);
    EXPECT_LE(testing::largest(found.slice(1, 1) - fused({.window = window})(before)[0]), 2e-6);
  }
}

TEST(SoftmaxAttention, StrictQueriesWithoutAKeyAreZeroWithoutGradient) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {  // the kernel and the blocked form
    Tensors in = random_inputs({1, 9, 2, 4, 3, -1, {}, true}, 61);
    for (Tensor& x : in) x = x.to(dtype);
    const Tensor document = at::tensor({7, 7, 7, 2, 2, 7, 1, 1, 1}).view({1, 9});
    for (const auto& form :
         {fused({.strict = true, .document = document}), defined({.strict = true, .document = document})}) {
      const Tensors found = testing::outputs_and_gradients(form, in);
      for (const Tensor& x : found) EXPECT_TRUE(x.isfinite().all().item<bool>());
      for (const int64_t row : {0, 3, 6}) {
        EXPECT_EQ(testing::largest(found[0].select(1, row)), 0.0);
        EXPECT_EQ(testing::largest(found[1].select(1, row)), 0.0);
      }
      EXPECT_EQ(testing::largest(found[2].select(1, 8)), 0.0);  // the last key: no query sees it
      EXPECT_GT(testing::largest(found[0].select(1, 5)), 0.0);
    }
  }
}

TEST(SoftmaxAttention, LogitsOfTenThousandStayFinite) {
  Tensors in = random_inputs({1, 140, 2, 16, 16}, 50);
  in[0] = in[0] * 1e4;
  for (const Tensor& x : testing::outputs_and_gradients(fused({}), in)) {
    EXPECT_TRUE(x.isfinite().all().item<bool>());
  }
}

TEST(SoftmaxAttention, KeysBeforeEveryWindowAreNotRead) {
  Tensors in = random_inputs({1, 400, 2, 16, 16, 100, 30}, 51);
  const Tensors clean = testing::outputs_and_gradients(fused({.window = 30}), in);
  for (const size_t i : {1, 2}) in[i].slice(1, 0, 300 - 29).fill_(kNaN);
  const Tensors found = testing::outputs_and_gradients(fused({.window = 30}), in);
  EXPECT_TRUE(testing::same_bits(clean, found));
}

TEST(SoftmaxAttention, MemoryIsLinear) {
  const auto peak = [](int64_t T) {
    const Tensors in = random_inputs({1, T, 2, 16, 16}, 52);
    const testing::PeakAllocation peak;
    testing::outputs_and_gradients(fused({.window = 64}), in);
    return peak.peak_bytes();
  };
  EXPECT_LE(static_cast<double>(peak(16384)), 4.4 * static_cast<double>(peak(4096)));
}

TEST(SoftmaxAttention, AnEmptyBatchAndNoQueriesAreFine) {
  for (const Shape& shape : {Shape{0, 5, 2, 4, 4}, Shape{1, 5, 2, 4, 4, 0}}) {
    for (const SoftmaxAttentionOptions& options :
         {SoftmaxAttentionOptions{}, SoftmaxAttentionOptions{.document = three_documents(shape.B, shape.T)}}) {
      const Tensors found = testing::outputs_and_gradients(fused(options), random_inputs(shape, 53));
      EXPECT_EQ(found[0].numel(), 0);
      EXPECT_EQ(testing::largest(found[2]), 0.0);
    }
  }
}

TEST(SoftmaxAttention, OtherDtypesUseTheBlockedForm) {
  Tensors in = random_inputs({1, 20, 2, 4, 4}, 54);
  for (Tensor& x : in) x = x.to(at::kHalf);
  const Tensors found = testing::outputs_and_gradients(fused({}), in);
  const Tensors expected = testing::outputs_and_gradients(defined({}), in);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), at::kHalf);
    EXPECT_LE(testing::largest(found[i] - expected[i]), 2e-3 * testing::largest(expected[i]));
  }
  for (Tensor& x : in) x = x.to(at::kDouble);
  testing::expect_gradients(fused({.window = 7}), in);
}

TEST(SoftmaxAttention, BadArgumentsAreNamed) {
  const Tensors in = random_inputs({2, 6, 2, 4, 3, -1, {}, true}, 55);
  const auto expect_error = [&](size_t argument, const Tensor& bad, const std::string& text) {
    Tensors arguments = in;
    arguments[argument] = bad;
    testing::expect_throws<c10::ValueError>([&] { fused({})(arguments); }, text);
  };
  expect_error(0, in[0].select(0, 0), "softmax_attention: q must have 4 dimensions");
  expect_error(0, in[0].to(at::kLong), "softmax_attention: q must be floating point");
  expect_error(1, in[1].slice(1, 0, 5), "softmax_attention: k must have the shape of q");
  expect_error(1, in[1].to(at::kDouble), "softmax_attention: k must have the dtype of q");
  expect_error(2, in[2].slice(2, 0, 1), "softmax_attention: v must have the shape of k");
  expect_error(3, in[3].slice(0, 0, 1), "softmax_attention: log_scale must have the shape [2]");
  expect_error(4, in[4].to(at::kBFloat16), "softmax_attention: log_bias must be float32 or float64");
  const auto expect_option_error = [&](const SoftmaxAttentionOptions& options, const std::string& text) {
    testing::expect_throws<c10::ValueError>([&] { softmax_attention(in[0], in[1], in[2], options); }, text);
  };
  expect_option_error({.window = 0}, "window must be at least 1, but is 0");
  expect_option_error({.key_start = -1}, "key_start must not be negative");
  expect_option_error({.log_bias = in[4]}, "log_bias needs log_scale");
  expect_option_error({.position_scale = at::ones({3})}, "position_scale needs log_scale");
  expect_option_error({.log_scale = in[3], .position_scale = at::ones({0})}, "position_scale must have the shape [P]");
  expect_option_error({.document = at::zeros({2, 5}, at::kLong)}, "document must have the shape [2, 6]");
  expect_option_error({.document = at::zeros({2, 6})}, "document must hold integers");
}

}  // namespace
}  // namespace tamis::ops::softmax_attention_test
