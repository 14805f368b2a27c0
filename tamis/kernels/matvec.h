#pragma once

#include <cstdint>

#include "tamis/kernels/rows.h"

// Products of a weight matrix with one or several vectors, for decoding: every weight is read once. With few vectors a
// lane holds a column; with more a lane holds a vector, so that nothing is summed across lanes. No torch, no
// allocation, no threads.

namespace tamis::kernels {

enum class WeightFormat { kFloat32, kBFloat16, kInt8 };

/// A matrix [rows][columns], contiguous.
struct WeightRows {
  const void* data = nullptr;
  const float* scale = nullptr;  // [rows]: int8 only, the scale of each row
  int64_t columns = 0;
  WeightFormat format = WeightFormat::kFloat32;
};

inline constexpr int64_t kMostVectors = 64;  // of one call
inline constexpr int64_t kFewVectors = 8;    // at most; with more, a lane holds a vector
inline constexpr int64_t kLaneVectors = 16;  // side by side in that case

/// The number of vectors in one call with the highest throughput: with float32 weights as many as possible, as each
/// weight is read once; with smaller formats a few (docs/performance.md).
constexpr int64_t vectors_together(WeightFormat format) {
  return format == WeightFormat::kFloat32 ? kMostVectors : kFewVectors;
}

/// Numbers of a prepared vector.
constexpr int64_t prepared_vector(int64_t columns) {
  constexpr int64_t kChunk = 64;  // at least the columns of one step of any format
  return kLanes + (columns + kChunk - 1) / kChunk * kChunk;
}

/// Numbers of `count` prepared vectors.
constexpr int64_t prepared_vectors(int64_t columns, int64_t count) {
  if (count <= kFewVectors) return count * prepared_vector(columns);
  return (count + kLaneVectors - 1) / kLaneVectors * kLaneVectors * columns;
}

/// Converts `count` vectors x[v * x_stride + column] to the layout that multiply_rows reads for this count and format.
/// Few vectors for int8 become 16-bit integers with one scale per vector: an error of at most |x|max / 65,534 for up to
/// 2,064 columns, and in proportion to the columns beyond.
void prepare_vectors(WeightFormat format, int64_t columns, const float* x, int64_t x_stride, int64_t count,
                     float* prepared);

/// y[v * y_stride + row - first] = sum over columns of W[row][column] x_v[column], for rows [first, last) and `count`
/// prepared vectors, at most kMostVectors. Weights are widened to float32 and summed there (int8 with a few vectors:
/// exact integer sums). The bits of a result depend neither on the other rows of the call nor on the other vectors, as
/// long as their number stays on the same side of kFewVectors.
void multiply_rows(const WeightRows& weights, int64_t first, int64_t last, const float* prepared, int64_t count,
                   float* y, int64_t y_stride);

}  // namespace tamis::kernels
