#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tamis/ops/screening/screening.h"

// What the blocked forms of screening and of its decoding state share: the steps before and after the sum over keys, in
// plain torch. Equation numbers are those of "Screening Is Enough". Nothing is read from the device, except what
// head_numbers says.

namespace tamis::ops {

/// What follows from the two scalars of a head.
struct HeadNumbers {
  double window;                // w, tokens; perhaps infinite                 (4)
  double inverse_w;             // 1/w, 0 where expanded
  double inverse_r;             // 1/r
  double one_minus_r;           //
  double angle_step = 0;        // of MiPE per token                           (6), (7)
  double angle_step_slope = 0;  // d angle_step / d s_w

  HeadNumbers(double s_w, double s_r, const ScreeningHeadOptions& options);

  /// Softmask is 1 for every key before the query.
  bool flat(int64_t keys) const;
};

/// Reads s_w and s_r from the device.
std::vector<HeadNumbers> head_numbers(const at::Tensor& s_w, const at::Tensor& s_r,
                                      const ScreeningHeadOptions& options);

/// One number of every head, float64 [N] on the CPU.
at::Tensor numbers_of(const std::vector<HeadNumbers>& heads, double HeadNumbers::*number);

/// Throws c10::ValueError for shapes of Trim and Softmask that do not exist.
void check_shapes(const char* name, const ScreeningHeadOptions& options);

/// Trim of its root t in [0, 1], and a p-th of its derivative by t, for the power p of the options.    (9)
at::Tensor trim_of(const at::Tensor& root, const ScreeningHeadOptions& options);
at::Tensor trim_slope_of(const at::Tensor& root, const ScreeningHeadOptions& options);

/// Softmask inside the window for x = pi (i - j) / w, and its derivative by s_w.                       (10)
at::Tensor softmask_of(const at::Tensor& x, const ScreeningHeadOptions& options);
at::Tensor softmask_slope_of(const at::Tensor& x, const at::Tensor& inverse_w, const ScreeningHeadOptions& options);

/// Rows scaled to unit length; a zero row stays zero and gets no gradient.     (5)
class UnitRows {
 public:
  /// Computes norms in `dtype`, with sums in float64 where there is one.
  UnitRows(const at::Tensor& x_NTD, at::ScalarType dtype);

  at::Tensor unit;  // [N, T, D]

  /// The gradient of the rows for that of the unit rows, which is overwritten.
  at::Tensor gradient(const at::Tensor& grad) const;

 private:
  at::Tensor norm() const;

  at::ScalarType dtype_;
  at::Tensor squared_;  // |x|^2, [N, T, 1]
};

/// Cosine and sine of the MiPE angles of rows, [N, T].                         (6)
struct Rotation {
  at::Tensor cos, sin;

  /// Turns dimensions 0 and 1 of x in place; direction -1 turns back.
  void turn(const at::Tensor& x_NTD, double direction) const;
};

/// The MiPE angle of every head per token, float64 [N, 1], on the CPU for a device without float64; undefined where no
/// head rotates.
at::Tensor angle_steps(const std::vector<HeadNumbers>& heads, at::Device device);

/// The rotation of the positions first, first + 1, ..., with the dtype and the device of `options`.
Rotation rotation_of(const at::Tensor& angle_step_N1, int64_t first, int64_t tokens, const at::TensorOptions& options);

struct TanhNorm {
  at::Tensor norm, factor;  // |h|, f = tanh|h| / |h|                               (13), (14)

  explicit TanhNorm(const at::Tensor& h);

  /// dh for the gradient du of f h.
  at::Tensor gradient(const at::Tensor& h, const at::Tensor& du) const;
};

/// tanh(SiLU(gate)) in the dtype of computations.                              (17)
at::Tensor gate_factor(const at::Tensor& gate);

}  // namespace tamis::ops
