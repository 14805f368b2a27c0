#include "tamis/ops/screening/acceptance.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace tamis::ops {
namespace {

TEST(Acceptance, KnownDistributions) {
  // On a sphere the similarity is uniform (Archimedes), on a circle its angle is.
  EXPECT_NEAR(accepted_share(0.3, 3), 0.15, 1e-6);
  EXPECT_NEAR(accepted_share(0.5, 2), 1.0 / 3, 1e-6);
  for (const int64_t dims : {2, 3, 16, 64}) EXPECT_NEAR(accepted_share(1, dims), 0.5, 1e-7);
}

TEST(Acceptance, AgreesWithRandomVectors) {
  at::manual_seed(3);
  const at::Tensor q = at::randn({1000, 16}), k = at::randn({1000, 16});
  const at::Tensor similarity = at::matmul(q / q.norm(2, {-1}, true), (k / k.norm(2, {-1}, true)).t());
  for (const double r : {0.5, 0.8}) {
    const double found = similarity.gt(1 - r).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(found, accepted_share(r, 16), 0.003);
  }
}

TEST(Acceptance, IsInverted) {
  for (const double share : {1e-6, 0.001, 0.02, 0.3, 0.5}) {
    EXPECT_NEAR(accepted_share(acceptance_for(share, 16), 16), share, 1e-6 * share + 1e-9);
  }
}

}  // namespace
}  // namespace tamis::ops
