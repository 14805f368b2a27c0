#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tamis/ops/screening/screening.h"
#include "tamis/ops/screening/screening_kernel.h"

namespace tamis::ops {

/// What the kernels read of a head, and the memory of its tables.
template <typename Real>
struct PreparedHead {
  kernels::ScreeningHead<Real> constants;
  std::vector<Real> softmask, slope;
  std::vector<double> turns;
  double mipe_step_slope = 0;  // d mipe_step / d s_w
};

/// Whether m, rounded to Real, differs from 1 for some key up to the query. If not, because the window
/// is infinite or much longer than `span` keys, the kernels use no table.
template <typename Real>
bool needs_softmask_table(double window, int64_t span);

/// The tables of a head for sequences of `keys` keys; `derivative` adds those that only the backward pass reads.
template <typename Real>
PreparedHead<Real> prepare_head(double s_w, double s_r, int64_t key_dim, int64_t value_dim, int64_t keys,
                                const ScreeningHeadOptions& options, bool derivative);

/// Queries that a forward pass answers together: fewer where the window is short, so that less is computed beyond it.
int64_t block_for_span(int64_t span);

}  // namespace tamis::ops
