#pragma once

#include <cstdint>

namespace tamis::ops {

/// The acceptance width r in (0, 1] at which `share` of the pairs of independent random unit vectors in `dims` >= 2
/// dimensions is accepted, 0 < share <= 1/2: the density of their similarity s is proportional to
/// (1 - s^2)^((dims - 3) / 2).
double acceptance_for(double share, int64_t dims);

}  // namespace tamis::ops
