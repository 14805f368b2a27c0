#include "tamis/ops/screening/screening_projected.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tamis/ops/testing.h"

namespace tamis::ops {
namespace {

using at::Tensor;
using testing::Tensors;

struct Case {
  at::ScalarType dtype;
  bool gate;
};

class ProjectedScreening : public ::testing::TestWithParam<Case> {};

/// Output and gradients of the projections, s_w and s_r are those of screening() on the parts, bit for bit.
TEST_P(ProjectedScreening, IsScreeningOfTheParts) {
  const auto [dtype, gate] = GetParam();
  const ProjectionLayout layout = {.heads = 5, .key_dim = 6, .value_dim = 9, .gate = gate};
  const int64_t width = 5 * (6 + 6 + 9 + (gate ? 9 : 0));
  const Tensors in = {testing::random_normal({2, 70, width}, 1).to(dtype), at::linspace(-1, 4, 5), at::ones({5})};
  ScreeningOptions options;
  options.expand_beyond = 40;
  const auto whole = [&](const Tensors& x) {
    return Tensors{projected_screening(x[0], layout, x[1], x[2], options)};
  };
  const auto parts = [&](const Tensors& x) {
    const ScreeningProjections p = split_projections(x[0], layout);
    ScreeningOptions with_gate = options;
    with_gate.gate = p.gate_BTHV;
    return Tensors{screening(p.q_BTHK, p.k_BTHK, p.v_BTHV, x[1], x[2], with_gate)};
  };
  const Tensors found = testing::outputs_and_gradients(whole, in);
  const Tensors expected = testing::outputs_and_gradients(parts, in);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(expected[i].abs().max().item().toDouble() > 0) << i;
    EXPECT_TRUE(testing::same_bits(found[i], expected[i])) << "tensor " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ProjectedScreening,
                         ::testing::Values(Case{at::kFloat, true}, Case{at::kFloat, false}, Case{at::kBFloat16, true},
                                           Case{at::kDouble, true},
                                           Case{at::kHalf, true}));  // half: no fused form, parts are copied

}  // namespace
}  // namespace tamis::ops
