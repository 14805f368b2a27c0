#include "tamis/ops/screening/acceptance.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace tamis::ops {
namespace {

TEST(Acceptance, KnownDistributions) {
  // On a sphere the similarity is uniform (Archimedes), on a circle its angle is; in 5 dimensions its density is
  // proportional to 1 - s^2, so that a share of (3 - r) r^2 / 4 is accepted.
  for (const double r : {2e-6, 0.002, 0.04, 0.3, 1.0}) {
    EXPECT_NEAR(acceptance_for(r / 2, 3), r, 1e-6 * r);
    EXPECT_NEAR(acceptance_for((3 - r) * r * r / 4, 5), r, 1e-6 * r);
  }
  EXPECT_NEAR(acceptance_for(1.0 / 3, 2), 0.5, 1e-6);
  for (const int64_t dims : {2, 3, 16, 64}) EXPECT_NEAR(acceptance_for(0.5, dims), 1, 1e-6);
}

TEST(Acceptance, AgreesWithRandomVectors) {
  at::manual_seed(3);
  const at::Tensor q = at::randn({1000, 16}), k = at::randn({1000, 16});
  const at::Tensor similarity = at::matmul(q / q.norm(2, {-1}, true), (k / k.norm(2, {-1}, true)).t());
  for (const double share : {0.02, 0.2}) {
    const double found = similarity.gt(1 - acceptance_for(share, 16)).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(found, share, 0.003);
  }
}

}  // namespace
}  // namespace tamis::ops
