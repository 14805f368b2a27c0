// The blocked form of stick-breaking attention, which other devices run, on the CPU or TAMIS_TEST_DEVICE.

#include "tamis/ops/stick_breaking_attention/stick_breaking_attention_blocked.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tamis/ops/testing.h"

namespace tamis::ops {
namespace {

using testing::Tensors;

struct BlockedStickShape {
  int64_t B, T, H, K, V;
  int64_t queries = -1;  // T_q; -1: all T
  double shift = 0;      // of every score: -8 makes long sticks, 3 short ones
  bool strict = true;
  bool documents = false;
};

const std::vector<BlockedStickShape> kBlockedStickShapes = {
    {1, 1, 1, 16, 16},
    {1, 1, 1, 16, 16, -1, 0, false},
    {2, 2, 1, 4, 3},
    {2, 65, 2, 16, 32, -1, 0, false},
    {1, 131, 3, 21, 7, -1, -3},
    {2, 200, 2, 64, 64, 37},
    {1, 300, 2, 32, 32, -1, 3},
    {2, 210, 2, 16, 16, -1, 0, true, true},
    {2, 210, 2, 16, 16, 70, -4, false, true},
    {1, 1100, 1, 8, 8, -1, -8},
    {2, 700, 8, 4, 4, -1, -2},  // more rows than are processed together
};

StickBreakingOptions blocked_stick_options(const BlockedStickShape& shape) {
  StickBreakingOptions options{.strict = shape.strict};
  if (shape.documents) {
    options.document = at::full({shape.B, shape.T}, 7, at::kLong);
    options.document->slice(1, shape.T / 5, shape.T / 2).fill_(3);
    options.document->slice(1, shape.T / 2, 2 * shape.T / 3).fill_(-1);
  }
  return options;
}

/// q, k, v. The first dimension of q and k carries the shift.
Tensors blocked_stick_inputs(const BlockedStickShape& shape, uint64_t seed, at::ScalarType dtype = at::kFloat) {
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

testing::Function blocked_sticks(const StickBreakingOptions& on_cpu) {
  const StickBreakingOptions options = testing::on_test_device(on_cpu);
  return testing::differentiable({
      .forward = [=](const Tensors& in) -> Tensors {
        const auto [out, remainder] = stick_breaking_attention_blocked(in[0], in[1], in[2], options);
        return {out, remainder};
      },
      .backward = [=](const Tensors& grad, const Tensors& in) -> Tensors {
        const auto [dq, dk, dv] =
            stick_breaking_attention_backward_blocked(grad[0], grad[1], in[0], in[1], in[2], options);
        return {dq, dk, dv};
      },
  });
}

testing::Function defined_sticks(const StickBreakingOptions& options) {
  return [=](const Tensors& in) -> Tensors {
    const auto [out, remainder] = reference::stick_breaking_attention(in[0], in[1], in[2], options);
    return {out, remainder};
  };
}

TEST(StickBreakingAttentionBlocked, IsAsAccurateAsPlainTorch) {
  for (const BlockedStickShape& shape : kBlockedStickShapes) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      if (dtype == at::kHalf && shape.T >= 500) continue;  // to save time: only conversions differ from bfloat16
      SCOPED_TRACE(::testing::Message() << "T " << shape.T << ", T_q " << shape.queries << ", shift " << shape.shift
                                        << ", documents " << shape.documents << ", " << dtype);
      const StickBreakingOptions options = blocked_stick_options(shape);
      std::vector<Tensors> samples;
      for (uint64_t i = 0; i < (shape.T < 500 ? 4 : 1); ++i)
        samples.push_back(blocked_stick_inputs(shape, 42 + 100 * i, dtype));
      testing::expect_as_accurate_as_plain_once(blocked_sticks(options), defined_sticks(options), samples);
    }
  }
}

TEST(StickBreakingAttentionBlocked, InFloat64IsTheDefinition) {
  for (const BlockedStickShape& shape : kBlockedStickShapes) {
    const StickBreakingOptions options = blocked_stick_options(shape);
    Tensors in = blocked_stick_inputs(shape, 43);
    for (at::Tensor& x : in) x = x.to(at::kDouble);
    const Tensors found = testing::outputs_and_gradients(blocked_sticks(options), in);
    const Tensors exact = testing::outputs_and_gradients(defined_sticks(options), in);
    for (size_t i = 0; i < exact.size(); ++i) {
      EXPECT_LE(testing::largest(found[i] - exact[i]), 1e-12 * std::max(1.0, testing::largest(exact[i])))
          << "T " << shape.T << ", tensor " << i;
    }
  }
}

TEST(StickBreakingAttentionBlocked, TakesStridedInputs) {
  Tensors in = blocked_stick_inputs({2, 130, 2, 16, 16, 70}, 44);
  const Tensors expected = testing::outputs_and_gradients(blocked_sticks({}), in);
  for (at::Tensor& x : in) x = testing::strided(x);
  EXPECT_TRUE(testing::same_bits(expected, testing::outputs_and_gradients(blocked_sticks({}), in)));
}

TEST(StickBreakingAttentionBlocked, LogitsOfTenThousandStayFinite) {
  for (const double shift : {0.0, 1.0, -1.0}) {
    Tensors in = blocked_stick_inputs({1, 140, 2, 16, 16, -1, shift}, 45);
    in[0] = in[0] * 1e4;
    for (const at::Tensor& x : testing::outputs_and_gradients(blocked_sticks({}), in)) {
      EXPECT_TRUE(x.isfinite().all().item<bool>()) << "shift " << shift;
    }
  }
}

TEST(StickBreakingAttentionBlocked, EmptyBatchAndNoQueries) {
  for (const BlockedStickShape& shape : {BlockedStickShape{0, 5, 2, 4, 4}, BlockedStickShape{1, 5, 2, 4, 4, 0}}) {
    const Tensors found = testing::outputs_and_gradients(blocked_sticks({}), blocked_stick_inputs(shape, 46));
    EXPECT_EQ(found[0].numel(), 0);
    EXPECT_EQ(testing::largest(found[3]), 0.0);
  }
}

TEST(StickBreakingAttentionBlocked, MemoryIsLinear) {
  for (const bool documents : {false, true}) {
    SCOPED_TRACE(documents ? "documents" : "one document");
    testing::expect_linear_memory([&](int64_t T) {
      const BlockedStickShape shape{.B = 1, .T = T, .H = 1, .K = 8, .V = 8, .documents = documents};
      testing::outputs_and_gradients(blocked_sticks(blocked_stick_options(shape)), blocked_stick_inputs(shape, 47));
    });
  }
}

}  // namespace
}  // namespace tamis::ops
