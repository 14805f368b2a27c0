#pragma once

#include <cstdint>

namespace tamis::ops {

/// Share of the pairs of independent random unit vectors in `dims` dimensions whose similarity exceeds 1 - r:
/// the density of the similarity s is proportional to (1 - s^2)^((dims - 3) / 2).
double accepted_share(double r, int64_t dims);

/// The acceptance width r in (0, 1] at which `share` of the keys is accepted, 0 < share <= 1/2.
double acceptance_for(double share, int64_t dims);

}  // namespace tamis::ops
