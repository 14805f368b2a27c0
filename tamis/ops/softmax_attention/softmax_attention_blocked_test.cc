// The blocked form of softmax attention, which other devices run, on the CPU or TAMIS_TEST_DEVICE.

#include "tamis/ops/softmax_attention/softmax_attention_blocked.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <vector>

#include "tamis/ops/testing.h"

namespace tamis::ops {
namespace {

using testing::Tensors;

struct BlockedSoftmaxShape {
  int64_t B, T, H, K, V;
  int64_t queries = -1;  // T_q; -1: all T
  std::optional<int64_t> window;
  bool scales = false, documents = false, strict = false;
};

/// Blocks of 16 to 64 queries with few keys, all keys, more rows than are processed together, keys without queries.
const std::vector<BlockedSoftmaxShape> kBlockedSoftmaxShapes = {
    {1, 1, 1, 16, 16},
    {2, 64, 2, 16, 32},
    {1, 131, 3, 20, 65},
    {2, 200, 2, 64, 64, 37},
    {1, 200, 2, 24, 40, 1},
    {1, 200, 2, 24, 40, 3, {}, true, true},
    {1, 300, 2, 32, 32, -1, 1},
    {1, 300, 2, 32, 32, -1, 17},
    {2, 257, 2, 24, 8, 90, 64},
    {1, 190, 2, 16, 16, -1, 100, true},
    {2, 150, 3, 16, 16, 80, {}, true},
    {2, 210, 2, 16, 16, -1, {}, true, true},
    {2, 210, 2, 16, 16, 70, 40, true, true},
    {2, 400, 2, 16, 16, -1, 20, false, true},
    {2, 700, 8, 8, 8},
    {1, 1500, 1, 8, 8, 40, 5},
    {2, 131, 2, 16, 16, -1, {}, true, false, true},
    {1, 300, 2, 16, 16, -1, 16, true, false, true},
    {1, 300, 2, 16, 16, 90, 1, false, false, true},
    {2, 210, 2, 16, 16, 70, 40, true, true, true},
    {2, 210, 2, 16, 16, -1, {}, true, true, true},
};

ScaledAttentionOptions blocked_options_of(const BlockedSoftmaxShape& shape) {
  ScaledAttentionOptions options{.scale = 0.3, .window = shape.window, .strict = shape.strict};
  if (shape.documents) {
    options.document = at::full({shape.B, shape.T}, 7, at::kLong);
    options.document->slice(1, shape.T / 5, shape.T / 2).fill_(3);
    options.document->slice(1, shape.T / 2, 2 * shape.T / 3).fill_(-1);
  }
  return options;
}

/// q, k, v and, with scales, query_scale.
Tensors blocked_softmax_inputs(const BlockedSoftmaxShape& shape, uint64_t seed, at::ScalarType dtype = at::kFloat) {
  const int64_t queries = shape.queries < 0 ? shape.T : shape.queries;
  Tensors in = {testing::random_normal({shape.B, queries, shape.H, shape.K}, seed, dtype),
                testing::random_normal({shape.B, shape.T, shape.H, shape.K}, seed + 1, dtype),
                testing::random_normal({shape.B, shape.T, shape.H, shape.V}, seed + 2, dtype)};
  if (shape.scales) in.push_back(testing::random_normal({shape.B, queries, shape.H}, seed + 3));
  return in;
}

ScaledAttentionOptions with_query_scale(ScaledAttentionOptions options, const Tensors& in) {
  if (in.size() > 3) options.query_scale = in[3];
  return options;
}

testing::Function blocked_softmax(const ScaledAttentionOptions& on_cpu) {
  const ScaledAttentionOptions options = testing::on_test_device(on_cpu);
  return testing::differentiable({
      .forward = [=](const Tensors& in) -> Tensors {
        return {softmax_attention_blocked(in[0], in[1], in[2], with_query_scale(options, in))};
      },
      .backward = [=](const Tensors& grad, const Tensors& in) -> Tensors {
        const auto [dq, dk, dv, dscale] =
            softmax_attention_backward_blocked(grad[0], in[0], in[1], in[2], with_query_scale(options, in));
        return in.size() > 3 ? Tensors{dq, dk, dv, dscale} : Tensors{dq, dk, dv};
      },
  });
}

testing::Function defined_softmax(const ScaledAttentionOptions& options) {
  return [=](const Tensors& in) -> Tensors {
    return {reference::scaled_attention(in[0], in[1], in[2], with_query_scale(options, in))};
  };
}

TEST(SoftmaxAttentionBlocked, IsAsAccurateAsPlainTorch) {
  for (const BlockedSoftmaxShape& shape : kBlockedSoftmaxShapes) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      if (dtype == at::kHalf && shape.T >= 500) continue;  // to save time: only conversions differ from bfloat16
      SCOPED_TRACE(::testing::Message() << "T " << shape.T << ", T_q " << shape.queries << ", window "
                                        << shape.window.value_or(0) << ", " << dtype);
      const ScaledAttentionOptions options = blocked_options_of(shape);
      std::vector<Tensors> samples;
      for (uint64_t i = 0; i < (shape.T < 500 ? 4 : 1); ++i)
        samples.push_back(blocked_softmax_inputs(shape, 42 + 100 * i, dtype));
      testing::expect_as_accurate_as_plain_once(blocked_softmax(options), defined_softmax(options), samples);
    }
  }
}

TEST(SoftmaxAttentionBlocked, InFloat64IsTheDefinition) {
  for (const BlockedSoftmaxShape& shape : kBlockedSoftmaxShapes) {
    const ScaledAttentionOptions options = blocked_options_of(shape);
    Tensors in = blocked_softmax_inputs(shape, 43);
    for (at::Tensor& x : in) x = x.to(at::kDouble);
    const Tensors found = testing::outputs_and_gradients(blocked_softmax(options), in);
    const Tensors exact = testing::outputs_and_gradients(defined_softmax(options), in);
    for (size_t i = 0; i < exact.size(); ++i) {
      EXPECT_LE(testing::largest(found[i] - exact[i]), 1e-13 * std::max(1.0, testing::largest(exact[i])))
          << "T " << shape.T << ", tensor " << i;
    }
  }
}

TEST(SoftmaxAttentionBlocked, TakesStridedInputs) {
  Tensors in = blocked_softmax_inputs({2, 210, 2, 16, 16, 70, 40, true}, 44);
  const Tensors expected = testing::outputs_and_gradients(blocked_softmax({.window = 40}), in);
  for (at::Tensor& x : in) x = testing::strided(x);
  EXPECT_TRUE(testing::same_bits(expected, testing::outputs_and_gradients(blocked_softmax({.window = 40}), in)));
}

TEST(SoftmaxAttentionBlocked, TheLongestWindowIsNone) {
  const Tensors in = blocked_softmax_inputs({1, 90, 2, 16, 16}, 46);
  for (const bool strict : {false, true}) {
    const auto with = [&](std::optional<int64_t> window) {
      return testing::outputs_and_gradients(blocked_softmax({.window = window, .strict = strict}), in);
    };
    EXPECT_TRUE(testing::same_bits(with(std::nullopt), with(std::numeric_limits<int64_t>::max()))) << strict;
  }
}

TEST(SoftmaxAttentionBlocked, KeysBeforeEveryWindowAreNotRead) {
  Tensors in = blocked_softmax_inputs({1, 400, 2, 16, 16, 100, 30}, 45);
  const Tensors clean = testing::outputs_and_gradients(blocked_softmax({.window = 30}), in);
  for (const size_t i : {1, 2}) in[i].slice(1, 0, 300 - 32).fill_(std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(testing::same_bits(clean, testing::outputs_and_gradients(blocked_softmax({.window = 30}), in)));
}

TEST(SoftmaxAttentionBlocked, EarlierDocumentsAreNotRead) {
  Tensors in = blocked_softmax_inputs({1, 400, 2, 16, 16}, 46);
  const at::Tensor document = at::arange(400).floor_divide(128).view({1, 400});
  const Tensors clean = testing::outputs_and_gradients(blocked_softmax({.document = document}), in);
  for (const size_t i : {0, 1, 2}) in[i].slice(1, 0, 128).fill_(std::numeric_limits<double>::quiet_NaN());
  const Tensors found = testing::outputs_and_gradients(blocked_softmax({.document = document}), in);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(testing::same_bits(clean[i].slice(1, 128), found[i].slice(1, 128))) << "tensor " << i;
  }
}

TEST(SoftmaxAttentionBlocked, EmptyBatchAndNoQueries) {
  for (const BlockedSoftmaxShape& shape : {BlockedSoftmaxShape{0, 5, 2, 4, 4}, BlockedSoftmaxShape{1, 5, 2, 4, 4, 0}}) {
    const Tensors found = testing::outputs_and_gradients(blocked_softmax({}), blocked_softmax_inputs(shape, 47));
    EXPECT_EQ(found[0].numel(), 0);
    EXPECT_EQ(testing::largest(found[2]), 0.0);
  }
}

TEST(SoftmaxAttentionBlocked, MemoryIsLinear) {
  for (const std::optional<int64_t> window : {std::optional<int64_t>(64), std::optional<int64_t>()}) {
    for (const bool documents : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "window " << window.value_or(0) << ", documents " << documents);
      testing::expect_linear_memory([&](int64_t T) {
        const BlockedSoftmaxShape shape{1, T, 2, 16, 16, -1, window, false, documents};
        testing::outputs_and_gradients(blocked_softmax(blocked_options_of(shape)), blocked_softmax_inputs(shape, 48));
      });
    }
  }
}

/// A token of decoding reads the cache, whose heads lie one after the other, where it is.
TEST(SoftmaxAttentionBlocked, OneQueryDoesNotCopyTheKeys) {
  constexpr int64_t T = 32768, H = 4, D = 64;
  const auto cache = [](uint64_t seed) { return testing::random_normal({1, H, T, D}, seed).transpose(1, 2); };
  const at::Tensor q = testing::random_normal({1, 1, H, D}, 49), k = cache(50), v = cache(51);
  const int64_t peak = testing::peak_bytes_of([&] { softmax_attention_blocked(q, k, v, {.scale = 0.125}); });
  EXPECT_LT(peak, k.numel() / 4);  // a sixteenth of the keys' bytes: scores and weights, 2 / D, and a mask
}

}  // namespace
}  // namespace tamis::ops
