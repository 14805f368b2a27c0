#pragma once

// The tests of every attention that selects its keys by alpha-entmax: one suite for entmax attention and Sieve.
// A Subject provides Options, kName, fused(q, k, v, options) and reference(q, k, v, options).

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "tamis/ops/attention.h"
#include "tamis/ops/selection/selection.h"
#include "tamis/ops/testing.h"

namespace tamis::ops::testing {

inline constexpr double kMargin = 1e-5;  // keys nearer to the threshold may be selected or not

struct SelectionShape {
  int64_t B, T, H, K, V;
  int64_t queries = -1;  // T_q; -1: all T
  double spread = 1;     // of the keys: 0 selects everything
};

/// q, k, v
inline Tensors normal_inputs(const SelectionShape& shape, uint64_t seed, at::ScalarType dtype = at::kFloat) {
  const int64_t T_q = shape.queries < 0 ? shape.T : shape.queries;
  return {random_normal({shape.B, T_q, shape.H, shape.K}, seed).to(dtype),
          (random_normal({shape.B, shape.T, shape.H, shape.K}, seed + 1) * shape.spread).to(dtype),
          random_normal({shape.B, shape.T, shape.H, shape.V}, seed + 2).to(dtype)};
}

/// (alpha - 1) z - tau of every pair in float64; -infinity where the query does not see the key.
template <typename Options>
at::Tensor exact_excess(const Tensors& in, const Options& options) {
  const Selection selection = selection_of(options, in[0].size(3));
  const at::Tensor q = in[0].to(at::kDouble), k = in[1].to(at::kDouble);
  const at::Tensor z = at::einsum("bihd,bjhd->bhij", {q, k}) * selection.scale;
  const at::Tensor visible = visible_pairs(q.size(1), k.size(1), selection.range(), q.device()).expand_as(z);
  return reference::entmax_excess(z, visible, options.alpha);
}

/// Inputs whose selection does not depend on rounding: those of the first seed for which no key is near its threshold.
template <typename Options>
Tensors clear_inputs(const SelectionShape& shape, const Options& options, uint64_t seed,
                     at::ScalarType dtype = at::kFloat, double margin = kMargin) {
  for (int attempt = 0; attempt < 40; ++attempt, seed += 100) {
    const Tensors in = normal_inputs(shape, seed, dtype);
    const at::Tensor distance = exact_excess(in, options).abs();
    if (distance.numel() == 0 || distance.min().template item<double>() > margin) return in;
  }
  ADD_FAILURE() << "no seed keeps every key away from its threshold";
  return {};
}

template <class Subject>
Function fused_with(const typename Subject::Options& options) {
  return [options](const Tensors& in) { return Tensors{Subject::fused(in[0], in[1], in[2], options)}; };
}

template <class Subject>
Function reference_with(const typename Subject::Options& options) {
  return [options](const Tensors& in) { return Tensors{Subject::reference(in[0], in[1], in[2], options)}; };
}

/// The weights of every pair [B, H, T_q, T_k]: the result for values that are unit vectors.
template <class Subject>
at::Tensor weights_of(const Tensors& in, const typename Subject::Options& options) {
  const int64_t T = in[1].size(1);
  const at::Tensor v = at::eye(T, in[1].options()).view({1, T, 1, T}).expand({in[1].size(0), T, in[1].size(2), T});
  return Subject::fused(in[0], in[1], v, options).transpose(1, 2);
}

/// Calls `check()` with each instruction set, once if the subject does not use our kernels.
template <class Subject, typename Check>
void for_each_target_of(const Check& check) {
  if constexpr (Subject::kUsesKernels) {
    for_each_target(check);
  } else {
    check();
  }
}

template <class Subject>
void expect_accurate(const SelectionShape& shape, const typename Subject::Options& options, uint64_t seed,
                     at::ScalarType dtype = at::kFloat, double margin = kMargin) {
  SCOPED_TRACE(::testing::Message() << "alpha " << options.alpha << ", strict " << options.strict << ", T " << shape.T
                                    << ", T_q " << shape.queries << ", K " << shape.K << ", V " << shape.V
                                    << ", spread " << shape.spread);
  // Of a few numbers the plain result may happen to be exact.
  const uint64_t seeds = shape.T < 50 ? 16 : shape.T < 500 ? 3 : 1;
  std::vector<Tensors> inputs;
  for (uint64_t i = 0; i < seeds; ++i) inputs.push_back(clear_inputs(shape, options, seed + 10'000 * i, dtype, margin));
  if (inputs.back().empty()) return;
  const auto results = [&](const Function& function, at::ScalarType in_dtype) {
    Tensors joint;
    for (const Tensors& in : inputs) {
      Tensors converted;
      for (const at::Tensor& x : in) converted.push_back(x.to(in_dtype));
      const Tensors one = outputs_and_gradients(function, converted);
      for (size_t t = 0; t < one.size(); ++t) {
        if (&in == &inputs.front()) joint.emplace_back(one[t].unsqueeze(0).slice(0, 0, 0));
        joint[t] = at::cat({joint[t], one[t].unsqueeze(0)});
      }
    }
    return joint;
  };
  const Tensors exact = results(reference_with<Subject>(options), at::kDouble);
  Tensors plain = results(reference_with<Subject>(options), at::kFloat);
  for (at::Tensor& x : plain) x = x.to(dtype);
  for_each_target_of<Subject>(
      [&] { expect_error_within(2.0, results(fused_with<Subject>(options), dtype), plain, exact); });
}

/// Expects that the keys with a weight are those above the exact threshold.
template <class Subject>
void expect_exact_support(const Tensors& in, const typename Subject::Options& options) {
  const at::Tensor excess = exact_excess(in, options);
  for_each_target_of<Subject>([&] {
    const at::Tensor selected = weights_of<Subject>(in, options) > 0;
    const at::Tensor wrong = (selected != (excess > 0)).logical_and(excess.abs() > kMargin);
    EXPECT_EQ(wrong.sum().template item<int64_t>(), 0);
  });
}

/// Bytes of tensors at their peak while `work` runs on a new thread, and of the scratch memory that the thread keeps.
template <typename Work>
int64_t bytes_of(const Work& work) {
  const auto in_use = [] {
    const struct mallinfo2 info = mallinfo2();
    return static_cast<int64_t>(info.uordblks + info.hblkhd);
  };
  int64_t bytes = 0;
  std::thread([&] {
    const Threads one(1);
    const PeakAllocation tensors;
    const int64_t before = in_use();
    work();
    bytes = tensors.peak_bytes() + in_use() - before;
  }).join();
  return bytes;
}

template <class Subject>
class SelectionTest : public ::testing::Test {};

TYPED_TEST_SUITE_P(SelectionTest);

inline const std::vector<SelectionShape> kSelectionShapes = {
    {1, 1, 2, 16, 64},              // one token
    {2, 2, 1, 16, 16},              //
    {2, 63, 3, 16, 64},             // a partial panel
    {1, 64, 2, 20, 65},             // odd dimensions
    {1, 65, 2, 7, 33},              //
    {1, 130, 3, 2, 1},              // smallest K and V
    {1, 700, 1, 64, 64},            // lists are tightened
    {2, 130, 2, 16, 64, 1},         // the last query
    {1, 300, 2, 16, 24, 77},        // the last queries
    {1, 300, 1, 16, 24, -1, 0.05},  // almost everything is selected
};

TYPED_TEST_P(SelectionTest, IsAsAccurateAsPlainTorch) {
  for (const SelectionShape& shape : kSelectionShapes) {
    for (const bool strict : {false, true}) expect_accurate<TypeParam>(shape, {.alpha = 1.5, .strict = strict}, 42);
  }
}

TYPED_TEST_P(SelectionTest, IsAsAccurateAsPlainTorchInBFloat16) {
  for (const SelectionShape& shape : kSelectionShapes) {
    expect_accurate<TypeParam>(shape, {.alpha = 1.5, .strict = true}, 43, at::kBFloat16);
  }
}

TYPED_TEST_P(SelectionTest, EveryAlphaIsAsAccurateAsPlainTorch) {
  for (const double alpha : {1.0, 1.01, 1.1, 1.25, 1.4, 2.0}) {
    for (const bool strict : {false, true}) {
      expect_accurate<TypeParam>({2, 130, 2, 16, 24}, {.alpha = alpha, .strict = strict}, 44);
    }
    expect_accurate<TypeParam>({1, 300, 1, 16, 24, 77, 0.1}, {.alpha = alpha, .strict = false}, 45);
  }
  // Between 1.5 and 2 the slope of g = u^(e - 1) is unbounded at u = 0: there the rounding of a score has a large
  // effect.
  for (const double alpha : {1.6, 1.75, 1.9}) {
    expect_accurate<TypeParam>({1, 20, 1, 16, 24}, {.alpha = alpha}, 46, at::kFloat, /*margin=*/1e-2);
  }
}

TYPED_TEST_P(SelectionTest, OptionsAreAsAccurateAsPlainTorch) {
  const SelectionShape shape = {2, 130, 2, 16, 24};
  const at::Tensor document = at::arange(130).floor_divide(37).expand({2, 130}).contiguous();
  for (const bool strict : {false, true}) {
    expect_accurate<TypeParam>(shape, {.scale = 0.9, .strict = strict}, 46);
    expect_accurate<TypeParam>(shape, {.scale = -0.1, .strict = strict}, 47);
    expect_accurate<TypeParam>(shape, {.strict = strict, .document = document}, 48);
    expect_accurate<TypeParam>({2, 130, 2, 16, 24, 70}, {.strict = strict, .document = document}, 49);
  }
}

TYPED_TEST_P(SelectionTest, SelectsWhatIsAboveTheExactThreshold) {
  for (const double alpha : {1.25, 1.5, 2.0}) {
    // Scores of a constant trend, and rising and falling with the position, so that every panel replaces the selection
    // of the one before, or has no selected key. Far below 0: the weights that Sieve gives to selected keys must not
    // underflow.
    for (const double slope : {0.0, -0.01, 0.01}) {
      Tensors in = normal_inputs({1, 400, 2, 16, 1}, 50);
      in[0].select(3, 0).fill_(4);
      in[1].select(3, 0).copy_((at::arange(400) * slope - 6).view({1, 400, 1}));
      expect_exact_support<TypeParam>(in, {.alpha = alpha, .strict = true});
    }
  }
}

TYPED_TEST_P(SelectionTest, GradientsMatchFiniteDifferences) {
  for (const double alpha : {1.0, 1.2, 1.5, 1.8, 2.0}) {
    for (const bool strict : {false, true}) {
      const typename TypeParam::Options options{.alpha = alpha, .strict = strict};
      Tensors in = clear_inputs({1, 9, 2, 4, 3, -1, 1.5}, options, 52);
      for (at::Tensor& x : in) x = x.to(at::kDouble);
      expect_gradients(fused_with<TypeParam>(options), in);
    }
  }
}

TYPED_TEST_P(SelectionTest, StridedInputsGiveTheSameBits) {
  const Tensors in = normal_inputs({2, 130, 2, 16, 24}, 53);
  Tensors strided_in, transposed;
  for (const at::Tensor& x : in) {
    strided_in.push_back(strided(x));
    transposed.push_back(x.transpose(1, 2).contiguous().transpose(1, 2));
  }
  const Tensors expected = outputs_and_gradients(fused_with<TypeParam>({}), in);
  EXPECT_TRUE(same_bits(expected, outputs_and_gradients(fused_with<TypeParam>({}), strided_in)));
  EXPECT_TRUE(same_bits(expected, outputs_and_gradients(fused_with<TypeParam>({}), transposed)));
}

TYPED_TEST_P(SelectionTest, ThreadsDoNotChangeBits) {
  for (const Tensors& in :
       {normal_inputs({1, 1500, 3, 16, 24}, 54), normal_inputs({2, 700, 2, 16, 24, -1, 0.1}, 55, at::kBFloat16)}) {
    Tensors one, four;
    {
      const Threads threads(1);
      one = outputs_and_gradients(fused_with<TypeParam>({}), in);
    }
    const Threads threads(4);
    EXPECT_TRUE(same_bits(one, outputs_and_gradients(fused_with<TypeParam>({}), in)));
  }
}

TYPED_TEST_P(SelectionTest, EmptyBatchAndNoQueries) {
  const Tensors empty = outputs_and_gradients(fused_with<TypeParam>({}), normal_inputs({0, 5, 2, 4, 3}, 56));
  EXPECT_EQ(empty[0].sizes(), at::IntArrayRef({0, 5, 2, 3}));
  const Tensors none = outputs_and_gradients(fused_with<TypeParam>({}), normal_inputs({2, 5, 1, 4, 3, 0}, 56));
  EXPECT_EQ(none[0].sizes(), at::IntArrayRef({2, 0, 1, 3}));
  EXPECT_EQ(largest(none[2]), 0.0);
  EXPECT_EQ(largest(none[3]), 0.0);
}

TYPED_TEST_P(SelectionTest, LastQueriesAreTheEndOfTheFullResult) {
  for (const bool strict : {false, true}) {
    const typename TypeParam::Options options{.strict = strict};
    const Tensors in = clear_inputs({1, 300, 2, 16, 24}, options, 57);
    const at::Tensor full = TypeParam::fused(in[0], in[1], in[2], options);
    for (const int64_t end : {300, 170}) {
      for (const int64_t queries : {1, 16, 37, 169}) {
        const at::Tensor found = TypeParam::fused(in[0].slice(1, end - queries, end), in[1].slice(1, 0, end),
                                                  in[2].slice(1, 0, end), {.strict = strict});
        EXPECT_LE(largest(found - full.slice(1, end - queries, end)), 1e-5 * largest(full));
      }
    }
  }
}

TYPED_TEST_P(SelectionTest, DocumentsAreAnsweredAsIfAlone) {
  for (const bool strict : {false, true}) {
    at::Tensor document = at::full({1, 150}, 900, at::kLong);
    document.slice(1, 71).fill_(-3);
    const Tensors in =
        clear_inputs({1, 150, 2, 16, 24}, typename TypeParam::Options{.strict = strict, .document = document}, 58);
    const at::Tensor packed = TypeParam::fused(in[0], in[1], in[2], {.strict = strict, .document = document});
    const at::Tensor alone =
        TypeParam::fused(in[0].slice(1, 71), in[1].slice(1, 71), in[2].slice(1, 71), {.strict = strict});
    EXPECT_LE(largest(packed.slice(1, 71) - alone), 1e-6);
    EXPECT_EQ(largest(packed.select(1, 71)) == 0, strict);
  }
}

TYPED_TEST_P(SelectionTest, QueriesThatSeeNothingAreZeroWithoutGradient) {
  for (const double alpha : {1.0, 1.5, 2.0}) {
    const typename TypeParam::Options options{
        .alpha = alpha, .strict = true, .document = at::tensor({7, 7, 7, 2, 2, 7}).view({1, 6})};
    const Tensors in = normal_inputs({1, 6, 2, 4, 3}, 59);
    for_each_target([&] {
      const Tensors found = outputs_and_gradients(fused_with<TypeParam>(options), in);
      for (const at::Tensor& x : found) EXPECT_TRUE(x.isfinite().all().template item<bool>());
      for (const int64_t row : {0, 3}) {
        EXPECT_EQ(largest(found[0].select(1, row)), 0.0);
        EXPECT_EQ(largest(found[1].select(1, row)), 0.0);
      }
      EXPECT_GT(largest(found[0].select(1, 5)), 0.0);
      EXPECT_EQ(largest(found[2].select(1, 4)), 0.0);  // the last of its document: seen by no query
    });
  }
}

TYPED_TEST_P(SelectionTest, HugeScoresStayFinite) {
  for (const double alpha : {1.0, 1.3, 1.5, 2.0}) {
    for (const bool strict : {false, true}) {
      Tensors in = normal_inputs({1, 130, 2, 16, 24}, 60);
      in[0] *= 1e4;
      const typename TypeParam::Options options{.alpha = alpha, .strict = strict};
      for_each_target([&] {
        for (const at::Tensor& x : outputs_and_gradients(fused_with<TypeParam>(options), in)) {
          EXPECT_TRUE(x.isfinite().all().template item<bool>());
        }
      });
    }
  }
}

TYPED_TEST_P(SelectionTest, EqualScoresSelectEverything) {
  for (const double alpha : {1.0, 1.3, 1.5, 2.0}) {
    for (const double score : {0.0, 3.0, -20.0}) {
      Tensors in = normal_inputs({1, 200, 1, 4, 5}, 61);
      in[0].fill_(1);
      in[1].fill_(score / 4);
      const typename TypeParam::Options options{.alpha = alpha, .scale = 1.0, .strict = false};
      expect_as_accurate_as_plain(fused_with<TypeParam>(options), reference_with<TypeParam>(options), in);
      if (score < 0) expect_exact_support<TypeParam>(in, options);
    }
  }
}

TYPED_TEST_P(SelectionTest, RejectedKeysNeverReadTheirValue) {
  const typename TypeParam::Options options{.strict = true};
  for (const double spread : {1.0, 0.2}) {  // a few keys of a panel are selected, and more than half of them
    SCOPED_TRACE(spread);
    const Tensors in = clear_inputs({1, 200, 1, 16, 24, -1, spread}, options, 62);
    const at::Tensor selected = exact_excess(in, options).select(0, 0).select(0, 0) > 0;  // [T_q, T_k]
    ASSERT_EQ(selected.sum().template item<int64_t>() > 200 * 199 / 4, spread < 1);
    const Tensors clean = outputs_and_gradients(fused_with<TypeParam>(options), in);
    for (const int64_t key : {20, 77, 130}) {
      const at::Tensor readers = selected.select(1, key).nonzero().flatten();
      const at::Tensor others = selected.select(1, key).logical_not().nonzero().flatten();
      ASSERT_GT(readers.numel(), 0);
      ASSERT_GT(others.numel(), key + 1);  // some of them see the key
      Tensors poisoned = in;
      poisoned[2] = in[2].clone();
      poisoned[2].select(1, key).fill_(std::numeric_limits<double>::quiet_NaN());
      for_each_target([&] {
        const Tensors found = outputs_and_gradients(fused_with<TypeParam>(options), poisoned);
        for (const size_t i : {0, 1}) {  // the result and dq
          EXPECT_LE(largest((found[i] - clean[i]).index_select(1, others)), 1e-5) << "tensor " << i;
          if (spread == 1) {
            EXPECT_TRUE(found[i].index_select(1, readers).isnan().all().template item<bool>()) << "tensor " << i;
          }
        }
        EXPECT_TRUE(found[3].isfinite().all().template item<bool>());  // the gradient of the values does not depend on
                                                                       // the values
      });
    }
  }
}

TYPED_TEST_P(SelectionTest, NaNShowsInTheResult) {
  for (const double alpha : {1.0, 1.3, 1.5, 2.0}) {
    const typename TypeParam::Options options{.alpha = alpha, .strict = true};
    for_each_target([&] {
      for (const size_t argument : {0, 1}) {
        Tensors in = normal_inputs({1, 90, 1, 16, 24}, 63);
        in[argument].select(1, 40).fill_(std::numeric_limits<double>::quiet_NaN());
        const at::Tensor out = fused_with<TypeParam>(options)(in)[0];
        const at::Tensor hit = argument == 0 ? out.slice(1, 40, 41) : out.slice(1, 41);
        EXPECT_TRUE(hit.isnan().all().template item<bool>()) << "argument " << argument;
        EXPECT_TRUE(out.slice(1, 0, 40).isfinite().all().template item<bool>()) << "argument " << argument;
      }
    });
  }
}

TYPED_TEST_P(SelectionTest, OutputsDoNotDependOnWhatMemoryHeld) {
  const Tensors in = normal_inputs({2, 130, 2, 16, 24}, 64);
  const Tensors expected = outputs_and_gradients(fused_with<TypeParam>({}), in);
  for (int round = 0; round < 3; ++round) {
    for (const at::Tensor& x : in) at::empty_like(x).fill_(std::numeric_limits<double>::quiet_NaN());
    EXPECT_TRUE(same_bits(expected, outputs_and_gradients(fused_with<TypeParam>({}), in)));
  }
}

TYPED_TEST_P(SelectionTest, MemoryGrowsLinearlyWithTheSequence) {
  struct Case {
    int64_t T, H;  // enough heads that the backward pass cuts both lengths into the same number of chunks
    double spread;
  };
  for (const Case& c : {Case{4096, 2, 1.0}, Case{1024, 8, 0.0}}) {  // a few keys of each query, and all of them
    const auto bytes = [&](int64_t tokens) {
      return bytes_of([&] {
        const Tensors in = normal_inputs({1, tokens, c.H, 8, 8, -1, c.spread}, 65);
        outputs_and_gradients(fused_with<TypeParam>({}), in);
      });
    };
    bytes(64);  // memory that is allocated once
    const int64_t after = bytes(4 * c.T);
    EXPECT_LE(after, 4.5 * bytes(c.T)) << "spread " << c.spread;      // 16 times as many pairs
    EXPECT_LT(after, 16 * c.T * c.T * c.H) << "spread " << c.spread;  // less than one byte per pair
  }
}

TYPED_TEST_P(SelectionTest, OtherDtypesUseTheBlockedForm) {
  const Tensors in = normal_inputs({1, 20, 2, 4, 3}, 66, at::kHalf);
  const Tensors found = outputs_and_gradients(fused_with<TypeParam>({}), in);
  const Tensors expected = outputs_and_gradients(reference_with<TypeParam>({}), in);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), at::kHalf);
    EXPECT_LE(largest(found[i] - expected[i]), 2e-3 * largest(expected[i])) << "tensor " << i;
  }
}

TYPED_TEST_P(SelectionTest, BadArgumentsAreNamed) {
  const Tensors in = normal_inputs({2, 6, 3, 4, 5}, 67);
  const std::string name = TypeParam::kName;
  const auto expect_error = [&](size_t argument, const at::Tensor& bad, const std::string& text) {
    Tensors arguments = in;
    arguments[argument] = bad;
    expect_throws<c10::ValueError>([&] { fused_with<TypeParam>({})(arguments); }, name + ": " + text);
  };
  expect_error(0, in[0].select(0, 0), "q must have 4 dimensions");
  expect_error(0, in[0].to(at::kLong), "q must be floating point");
  expect_error(1, in[1].slice(1, 0, 5),
               "k must have the shape of q [2, 6, 3, 4] or more positions, but has [2, 5, 3, 4]");
  expect_error(1, in[1].to(at::kDouble), "k must have the dtype of q");
  expect_error(2, in[2].slice(0, 0, 1), "v must have the shape of k");
  const auto expect_option_error = [&](const typename TypeParam::Options& options, const std::string& text) {
    expect_throws<c10::ValueError>([&] { fused_with<TypeParam>(options)(in); }, name + ": " + text);
  };
  expect_option_error({.alpha = 0.99}, "alpha must be between 1 (softmax) and 2 (sparsemax), but is 0.99");
  expect_option_error({.alpha = 2.01}, "alpha must be between 1 (softmax) and 2 (sparsemax), but is 2.01");
  expect_option_error({.alpha = std::nan("")}, "alpha must be between 1 (softmax) and 2 (sparsemax), but is nan");
  expect_option_error({.document = at::zeros({2, 5}, at::kLong)}, "document must have the shape [2, 6]");
  expect_option_error({.document = at::zeros({2, 6})}, "document must hold integers");
}

REGISTER_TYPED_TEST_SUITE_P(SelectionTest, IsAsAccurateAsPlainTorch, IsAsAccurateAsPlainTorchInBFloat16,
                            EveryAlphaIsAsAccurateAsPlainTorch, OptionsAreAsAccurateAsPlainTorch,
                            SelectsWhatIsAboveTheExactThreshold, GradientsMatchFiniteDifferences,
                            StridedInputsGiveTheSameBits, ThreadsDoNotChangeBits, EmptyBatchAndNoQueries,
                            LastQueriesAreTheEndOfTheFullResult, DocumentsAreAnsweredAsIfAlone,
                            QueriesThatSeeNothingAreZeroWithoutGradient, HugeScoresStayFinite,
                            EqualScoresSelectEverything, RejectedKeysNeverReadTheirValue, NaNShowsInTheResult,
                            OutputsDoNotDependOnWhatMemoryHeld, MemoryGrowsLinearlyWithTheSequence,
                            OtherDtypesUseTheBlockedForm, BadArgumentsAreNamed);

}  // namespace tamis::ops::testing
