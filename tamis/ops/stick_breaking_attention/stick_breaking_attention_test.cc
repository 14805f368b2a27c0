#include "tamis/ops/stick_breaking_attention/stick_breaking_attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "tamis/ops/stick_breaking_attention/stick_breaking_attention_cpu.h"
#include "tamis/ops/stick_breaking_attention/stick_breaking_attention_kernel.h"
#include "tamis/ops/testing.h"

namespace tamis::ops::stick_breaking_attention_test {
namespace {

using at::Tensor;
using testing::Tensors;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Shape {
  int64_t B, T, H, K, V;
  int64_t queries = -1;  // T_q; -1: all T
  double shift = 0;      // of every score: -8 makes long sticks, 3 short ones
  bool strict = true;
  bool documents = false;  // three of different lengths, one of them in two pieces
};

std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << "B" << s.B << "_T" << s.T << "_H" << s.H << "_K" << s.K << "_V" << s.V << "_q"
             << (s.queries < 0 ? s.T : s.queries) << (s.shift < 0 ? "_long" : "_short") << std::abs(s.shift)
             << (s.strict ? "_strict" : "") << (s.documents ? "_documents" : "");
}

StickBreakingOptions options_of(const Shape& shape) {
  StickBreakingOptions options{.strict = shape.strict};
  if (shape.documents) {
    options.document = at::full({shape.B, shape.T}, 7, at::kLong);
    options.document->slice(1, shape.T / 5, shape.T / 2).fill_(3);
    options.document->slice(1, shape.T / 2, 2 * shape.T / 3).fill_(-1);
  }
  return options;
}

/// q, k, v. The first dimension of q and k carries the shift.
Tensors random_inputs(const Shape& shape, uint64_t seed, at::ScalarType dtype = at::kFloat) {
  const int64_t queries = shape.queries < 0 ? shape.T : shape.queries;
  const Tensors in = {testing::random_normal({shape.B, queries, shape.H, shape.K}, seed, dtype),
                      testing::random_normal({shape.B, shape.T, shape.H, shape.K}, seed + 1, dtype),
                      testing::random_normal({shape.B, shape.T, shape.H, shape.V}, seed + 2, dtype)};
  if (shape.shift != 0) {
    in[0].select(3, 0).fill_(std::sqrt(static_cast<double>(shape.K)));
    in[1].select(3, 0).fill_(shape.shift);
  }
  return in;
}

template <typename Operator>
testing::Function bound(const Operator& op, const StickBreakingOptions& options) {
  return [op, options](const Tensors& in) -> Tensors {
    const auto [out, remainder] = op(in[0], in[1], in[2], options);
    return {out, remainder};
  };
}

testing::Function fused(const StickBreakingOptions& options) {
  return bound([](auto&&... in) { return stick_breaking_attention(in...); }, options);
}

testing::Function defined(const StickBreakingOptions& options) {
  return bound([](auto&&... in) { return reference::stick_breaking_attention(in...); }, options);
}

/// Several seeds, because the plain result of a tensor of few numbers may happen to be exact.
std::vector<Tensors> samples(const Shape& shape, uint64_t seed, at::ScalarType dtype = at::kFloat) {
  std::vector<Tensors> inputs;
  for (uint64_t i = 0; i < 8; ++i) inputs.push_back(random_inputs(shape, seed + 100 * i, dtype));
  return inputs;
}

class StickBreakingTest : public ::testing::TestWithParam<Shape> {};

INSTANTIATE_TEST_SUITE_P(Shapes, StickBreakingTest,
                         ::testing::Values(Shape{1, 1, 1, 16, 16}, Shape{1, 1, 1, 16, 16, -1, 0, false},
                                           Shape{2, 2, 1, 4, 3}, Shape{2, 64, 2, 16, 32},
                                           Shape{2, 65, 2, 16, 32, -1, 0, false}, Shape{1, 131, 3, 20, 65},
                                           Shape{1, 131, 3, 21, 7, -1, -3}, Shape{2, 200, 2, 64, 64, 37},
                                           Shape{2, 200, 2, 64, 64, 1, -2}, Shape{1, 300, 2, 32, 32, -1, 3},
                                           Shape{2, 210, 2, 16, 16, -1, 0, true, true},
                                           Shape{2, 210, 2, 16, 16, 70, -4, false, true}, Shape{1, 1100, 1, 8, 8},
                                           Shape{1, 1100, 1, 8, 8, -1, -8}, Shape{1, 4000, 1, 8, 8, 70, -8},
                                           Shape{1, 4000, 1, 8, 8, 70, -14}),
                         [](const auto& shape) { return (std::ostringstream() << shape.param).str(); });

TEST_P(StickBreakingTest, IsAsAccurateAsPlainTorch) {
  const StickBreakingOptions options = options_of(GetParam());
  testing::expect_as_accurate_as_plain(fused(options), defined(options), samples(GetParam(), 42));
}

TEST_P(StickBreakingTest, IsAsAccurateAsPlainTorchFromBFloat16) {
  const StickBreakingOptions options = options_of(GetParam());
  testing::expect_as_accurate_as_plain(fused(options), defined(options), samples(GetParam(), 43, at::kBFloat16));
}

TEST_P(StickBreakingTest, HasTheSameBitsForAnyThreadsAndStrides) {
  const StickBreakingOptions options = options_of(GetParam());
  Tensors in = random_inputs(GetParam(), 44);
  const auto run = [&](int threads) {
    const testing::Threads limit(threads);
    return testing::outputs_and_gradients(fused(options), in);
  };
  const Tensors one = run(1);
  EXPECT_TRUE(testing::same_bits(one, run(4)));
  for (Tensor& x : in) x = testing::strided(x);
  EXPECT_TRUE(testing::same_bits(one, run(2)));
}

TEST_P(StickBreakingTest, WeightsAndRemainderMakeOneStick) {
  Tensors in = random_inputs(GetParam(), 45);
  in[2].fill_(1);
  testing::for_each_target([&] {
    const Tensors found = fused(options_of(GetParam()))(in);
    EXPECT_LE(testing::largest(found[0].select(3, 0) + found[1] - 1), 1e-6);
  });
}

TEST_P(StickBreakingTest, ChunksGiveTheWhole) {
  const Shape& shape = GetParam();
  Shape all = shape;
  all.queries = -1;
  if (shape.T > 2000) return;  // longer sequences repeat the same
  const StickBreakingOptions options = options_of(shape);
  const Tensors in = random_inputs(all, 46), whole = fused(options)(in);
  for (const int64_t chunk : {int64_t{1}, int64_t{50}}) {
    for (int64_t first = 0; first < shape.T; first += chunk * 13) {  // some of the chunks
      const int64_t last = std::min(first + chunk, shape.T);
      StickBreakingOptions mine = options;
      if (mine.document) mine.document = mine.document->slice(1, 0, last);
      const Tensors found =
          fused(mine)({in[0].slice(1, first, last), in[1].slice(1, 0, last), in[2].slice(1, 0, last)});
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_LE(testing::largest(found[i] - whole[i].slice(1, first, last)), 1e-5 * testing::largest(whole[i]));
      }
    }
  }
}

TEST_P(StickBreakingTest, TheEarlyEndChangesNoBit) {
  const StickBreakingOptions options = options_of(GetParam());
  const Tensors in = random_inputs(GetParam(), 47);
  testing::for_each_target([&] {
    const auto run = [&](KeyPass pass) -> Tensors {
      const auto [out, remainder] = stick_breaking_attention_cpu(in[0], in[1], in[2], options, pass);
      const auto [dq, dk, dv] =
          stick_breaking_attention_backward_cpu(out, remainder, in[0], in[1], in[2], options, pass);
      return {out, remainder, dq, dk, dv};
    };
    EXPECT_TRUE(testing::same_bits(run(KeyPass::kUntilNothingIsLeft), run(KeyPass::kWhole)));
  });
}

TEST(StickBreakingAttention, TheEarlyEndWaitsForTheLongestStick) {
  // In every block some sticks are used up by the first keys and others never are.
  const Tensors in = random_inputs({1, 600, 1, 16, 16, -1, -8}, 47);
  for (int64_t t = 0; t < 600; t += 3) in[0].select(1, t).neg_();
  testing::for_each_target([&] {
    const auto run = [&](KeyPass pass) -> Tensors {
      const auto [out, remainder] = stick_breaking_attention_cpu(in[0], in[1], in[2], {}, pass);
      const auto [dq, dk, dv] = stick_breaking_attention_backward_cpu(out, remainder, in[0], in[1], in[2], {}, pass);
      return {out, remainder, dq, dk, dv};
    };
    EXPECT_TRUE(testing::same_bits(run(KeyPass::kUntilNothingIsLeft), run(KeyPass::kWhole)));
  });
  for (int64_t t = 0; t < 600; ++t) {  // 32 neighbours, which are whole vectors of lanes
    if (t % 64 < 32 && t % 3 != 0) in[0].select(1, t).neg_();
    if (t % 64 >= 32 && t % 3 == 0) in[0].select(1, t).neg_();
  }
  testing::expect_as_accurate_as_plain(fused({}), defined({}), in);
}

TEST(StickBreakingAttention, AKeyThatTakesNearlyAllLeavesTheRightRest) {
  // One query, two keys, the newer one with score z: it leaves 1 / (1 + exp(z)) of the stick, and the older one half.
  testing::for_each_target([] {
    for (const double z : {1.0, 5.0, 12.0, 30.0, 65.0}) {
      const Tensor q = at::ones({1, 1, 1, 1}), k = at::tensor({0.0, z}).to(at::kFloat).view({1, 2, 1, 1});
      const Tensor v = at::tensor({1.0f, 0.0f}).view({1, 2, 1, 1});
      const auto [out, remainder] = stick_breaking_attention(q, k, v, {.scale = 1.0, .strict = false});
      const double expected = 0.5 / (1 + std::exp(z));
      EXPECT_NEAR(out.item<double>() / expected, 1, 1e-6) << "z " << z;
      EXPECT_NEAR(remainder.item<double>() / expected, 1, 1e-6) << "z " << z;
    }
  });
}

TEST(StickBreakingAttention, KeysBeyondTheEndOfEveryStickCannotMatter) {
  // The newest 600 keys use up every stick; those before hold NaN.
  const Shape shape{1, 1000, 2, 16, 16, 70};
  Tensors in = random_inputs(shape, 48);
  const Tensors clean = testing::outputs_and_gradients(fused({}), in);
  in[1].slice(1, 0, 400).fill_(kNaN);
  in[2].slice(1, 0, 400).fill_(kNaN);
  testing::for_each_target([&] {
    for (const Tensor& x : testing::outputs_and_gradients(fused({}), in)) {
      EXPECT_TRUE(x.isfinite().all().item<bool>());
    }
  });
  EXPECT_TRUE(testing::same_bits(clean, testing::outputs_and_gradients(fused({}), in)));
  const auto [whole, remainder] = stick_breaking_attention_cpu(in[0], in[1], in[2], {}, KeyPass::kWhole);
  EXPECT_TRUE(whole.isnan().any().item<bool>());  // without the early end they are read
}

TEST(StickBreakingAttention, HalvesTheStickWhenScoresAreZero) {
  // a_ij = 2^-(i - j), remainder 2^-i: exact in float32 while the stick is not used up.
  Tensors in = random_inputs({1, 200, 1, 4, 200}, 49);
  in[0].zero_();
  in[2].copy_(at::eye(200).view({1, 200, 1, 200}));
  testing::for_each_target([&] {
    const Tensors found = fused({})(in);
    const Tensor weights = found[0].view({200, 200}), remainder = found[1].flatten();
    for (const int64_t i : {0, 1, 2, 60, 95, 102}) {
      EXPECT_EQ(remainder[i].item<float>(), std::ldexp(1.0f, static_cast<int>(-i)));
      for (const int64_t j : {int64_t{0}, i / 2, i - 1}) {
        if (j >= 0 && j < i) {
          EXPECT_EQ(weights[i][j].item<float>(), std::ldexp(1.0f, static_cast<int>(j - i)));
        }
      }
    }
    EXPECT_EQ(remainder[199].item<float>(), 0.0f);
  });
}

TEST(StickBreakingAttention, QueriesThatSeeNoKeyKeepTheirStick) {
  const Tensors in = random_inputs({1, 90, 2, 8, 8}, 50);
  Tensor document = at::zeros({1, 90}, at::kLong);
  document.slice(1, 40).fill_(1);
  const Tensors found = testing::outputs_and_gradients(fused({.document = document}), in);
  for (const int64_t i : {0, 40}) {
    EXPECT_EQ(testing::largest(found[0].select(1, i)), 0.0);
    EXPECT_TRUE(found[1].select(1, i).equal(at::ones({1, 2})));
    EXPECT_EQ(testing::largest(found[2].select(1, i)), 0.0);
  }
  EXPECT_GT(testing::largest(found[2].select(1, 41)), 0.0);
  const Tensors second = {in[0].slice(1, 40), in[1].slice(1, 40), in[2].slice(1, 40)};
  const Tensors alone = fused({})(second);
  EXPECT_LE(testing::largest(found[0].slice(1, 40) - alone[0]), 1e-6);
  EXPECT_LE(testing::largest(found[1].slice(1, 40) - alone[1]), 1e-6);
}

TEST(StickBreakingAttention, GradientsOfTheDefinitionMatchFiniteDifferences) {
  for (const bool strict : {true, false}) {
    Tensors in = random_inputs({1, 7, 2, 3, 2, 5}, 51);
    for (Tensor& x : in) x = x.to(at::kDouble);
    testing::expect_gradients(defined({.scale = 0.7, .strict = strict}), in);
    testing::expect_gradients(fused({.document = at::tensor({4, 4, 4, 7, 7, 4, 7}).view({1, 7})}), in);
  }
}

TEST(StickBreakingAttention, ScaleIsTheOneThatIsGiven) {
  const Tensors in = random_inputs({1, 80, 2, 16, 16}, 52);
  testing::expect_as_accurate_as_plain(fused({.scale = 0.03}), defined({.scale = 0.03}), in);
  testing::expect_as_accurate_as_plain(fused({.scale = -1.5}), defined({.scale = -1.5}), in);
}

TEST(StickBreakingAttention, LogitsOfTenThousandStayFinite) {
  for (const double shift : {0.0, 1.0, -1.0}) {
    Tensors in = random_inputs({1, 140, 2, 16, 16, -1, shift}, 53);
    in[0] = in[0] * 1e4;
    testing::for_each_target([&] {
      for (const Tensor& x : testing::outputs_and_gradients(fused({}), in)) {
        EXPECT_TRUE(x.isfinite().all().item<bool>()) << "shift " << shift;
      }
    });
    for (const Tensor& x : testing::outputs_and_gradients(defined({}), in)) {
      EXPECT_TRUE(x.isfinite().all().item<bool>()) << "shift " << shift;
    }
  }
}

TEST(StickBreakingAttention, NaNShowsInTheResult) {
  testing::for_each_target([] {
    for (const size_t argument : {0, 1, 2}) {
      Tensors in = random_inputs({1, 70, 1, 8, 8}, 54);
      in[argument].select(1, 40).fill_(kNaN);
      const Tensor out = fused({})(in)[0];
      const int64_t shown = argument == 0 ? 40 : 41;  // strict: the key and value of 40 are seen by 41
      EXPECT_TRUE(out.select(1, shown).isnan().all().item<bool>()) << "argument " << argument;
      if (argument < 2) {
        EXPECT_TRUE(out.slice(1, 0, 40).isfinite().all().item<bool>()) << "argument " << argument;
      }
    }
  });
}

TEST(StickBreakingAttention, MemoryIsLinear) {  // tensors, and the scratch memory of one thread
  const auto peak = [](int64_t T) {
    const Tensors in = random_inputs({1, T, 16, 4, 4}, 55);
    const testing::PeakAllocation tensors;
    testing::outputs_and_gradients(fused({}), in);
    return tensors.peak_bytes() + 4 * kernels::stick_breaking_backward_scratch(T, 4, 4);
  };
  EXPECT_LE(static_cast<double>(peak(16384)), 4.4 * static_cast<double>(peak(4096)));
}

TEST(StickBreakingAttention, AnEmptyBatchAndNoQueriesAreFine) {
  for (const Shape& shape : {Shape{0, 5, 2, 4, 4}, Shape{1, 5, 2, 4, 4, 0}}) {
    const Tensors found = testing::outputs_and_gradients(fused({}), random_inputs(shape, 56));
    EXPECT_EQ(found[0].numel(), 0);
    EXPECT_EQ(found[1].numel(), 0);
    EXPECT_EQ(testing::largest(found[3]), 0.0);
  }
}

TEST(StickBreakingAttention, OneOutputAloneHasAGradient) {
  const Tensors in = random_inputs({1, 80, 2, 8, 8}, 57);
  for (const size_t output : {0, 1}) {
    const auto alone = [&](const testing::Function& function) {
      return [&, function](const Tensors& x) -> Tensors { return {function(x)[output]}; };
    };
    testing::expect_as_accurate_as_plain(alone(fused({})), alone(defined({})), in);
  }
}

TEST(StickBreakingAttention, OtherDtypesUseTheBlockedForm) {
  Tensors in = random_inputs({1, 20, 2, 4, 4}, 58);
  for (Tensor& x : in) x = x.to(at::kHalf);
  const Tensors found = testing::outputs_and_gradients(fused({}), in);
  const Tensors expected = testing::outputs_and_gradients(defined({}), in);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), i == 1 ? at::kFloat : at::kHalf);
    EXPECT_LE(testing::largest(found[i] - expected[i]), 2e-3 * testing::largest(expected[i])) << "tensor " << i;
  }
}

TEST(StickBreakingAttention, MetaTensorsHaveTheShapesOfTheResult) {
  Tensors in = random_inputs({2, 9, 3, 4, 5, 6}, 59, at::kBFloat16);
  for (Tensor& x : in) x = x.to(at::kMeta);
  const Tensors found = fused({})(in);
  EXPECT_EQ(found[0].sizes(), at::IntArrayRef({2, 6, 3, 5}));
  EXPECT_EQ(found[0].scalar_type(), at::kBFloat16);
  EXPECT_EQ(found[1].sizes(), at::IntArrayRef({2, 6, 3}));
  EXPECT_EQ(found[1].scalar_type(), at::kFloat);
}

TEST(StickBreakingAttention, BadArgumentsAreNamed) {
  const Tensors in = random_inputs({2, 6, 2, 4, 3}, 60);
  const auto expect_error = [&](size_t argument, const Tensor& bad, const std::string& text) {
    Tensors arguments = in;
    arguments[argument] = bad;
    testing::expect_throws<c10::ValueError>([&] { fused({})(arguments); }, "stick_breaking_attention: " + text);
  };
  expect_error(0, in[0].select(0, 0), "q must have 4 dimensions");
  expect_error(0, in[0].to(at::kLong), "q must be floating point");
  expect_error(1, in[1].slice(1, 0, 5), "k must have the shape of q [2, 6, 2, 4] or more positions, but has [2, 5");
  expect_error(1, in[1].to(at::kDouble), "k must have the dtype of q");
  expect_error(2, in[2].slice(2, 0, 1), "v must have the shape of k");
  const auto expect_option_error = [&](const StickBreakingOptions& options, const std::string& text) {
    testing::expect_throws<c10::ValueError>([&] { fused(options)(in); }, "stick_breaking_attention: " + text);
  };
  expect_option_error({.document = at::zeros({2, 5}, at::kLong)}, "document must have the shape [2, 6]");
  expect_option_error({.document = at::zeros({2, 6})}, "document must hold integers");
}

}  // namespace
}  // namespace tamis::ops::stick_breaking_attention_test
