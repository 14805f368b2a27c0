#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "tamis/kernels/matvec.h"

namespace tamis::nn {

/// A weight matrix as decoding keeps it: in its dtype, or as int8 with one scale per row (output channel),
///
///   W[row][column] = scale[row] q[row][column],   scale = max |W[row]| / 127,   q in -127 .. 127
///
/// so that a product with one vector or a few reads each weight once from memory, and no more bytes than it must.
class StreamedMatrix {
 public:
  /// weight_RC [rows, columns], shared, not copied, unless `int8`.
  StreamedMatrix(const at::Tensor& weight_RC, bool int8);

  /// The matrix in `dtype`, for products with many vectors: shared where it has that dtype.
  at::Tensor dense(at::ScalarType dtype) const;

  /// For kernels::multiply_rows, as long as this lives; nothing where that knows neither device nor dtype.
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
