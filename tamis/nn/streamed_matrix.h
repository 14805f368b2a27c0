#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "tamis/kernels/matvec.h"

namespace tamis::nn {

/// A weight matrix for decoding, in its own dtype or as int8 with one scale per row (output channel),
///
///   W[row][column] = scale[row] q[row][column],   scale = max |W[row]| / 127,   q in -127 .. 127
///
/// A product with one vector or a few reads each weight once from memory.
class StreamedMatrix {
 public:
  /// weight_RC [rows, columns], shared, not copied, unless `int8`.
  StreamedMatrix(const at::Tensor& weight_RC, bool int8);

  /// The matrix in `dtype`, for products with many vectors; shared if it has that dtype already.
  at::Tensor dense(at::ScalarType dtype) const;

  /// For kernels::multiply_rows, valid as long as this object; none for devices and dtypes without a kernel.
  std::optional<kernels::WeightRows> rows() const;

  int64_t row_count() const { return weight_RC_.size(0); }
  int64_t column_count() const { return weight_RC_.size(1); }
  int64_t bytes() const;
  at::Device device() const { return weight_RC_.device(); }

 private:
  at::Tensor weight_RC_;
  at::Tensor scale_R_;  // int8 only
};

}  // namespace tamis::nn
