#pragma once

#include <cstdint>

#include "tamis/kernels/rows.h"

// Products of a weight matrix with one vector or some, as decoding needs them: every weight is read once. Few vectors
// have their columns in lanes, one after the other; more have a lane each, so that nothing is summed across lanes. No
// torch, no allocation, no threads in here.

namespace tamis::kernels {

enum class WeightFormat { kFloat32, kBFloat16, kInt8 };

/// A matrix [rows][columns] whose rows follow each other without gaps.
struct WeightRows {
  const void* data = nullptr;
  const float* scale = nullptr;  // [rows]: int8 only, what the integers of a row are multiplied by
  int64_t columns = 0;
  WeightFormat format = WeightFormat::kFloat32;
};

inline constexpr int64_t kMostVectors = 64;  // that one call multiplies
inline constexpr int64_t kFewVectors = 8;    // at most; more have a lane each
inline constexpr int64_t kLaneVectors = 16;  // that stand side by side then

/// Vectors to give to one call for the most products per second: float32 weights are worth reading once for all, of
/// smaller formats a few vectors are multiplied faster than many (docs/performance.md).
constexpr int64_t vectors_together(WeightFormat format) {
  return format == WeightFormat::kFloat32 ? kMostVectors : kFewVectors;
}

/// Numbers that a vector takes once it is prepared.
constexpr int64_t prepared_vector(int64_t columns) {
  constexpr int64_t kChunk = 64;  // at least the columns that one step of any format takes
  return kLanes + (columns + kChunk - 1) / kChunk * kChunk;
}

/// Numbers that `count` vectors take.
constexpr int64_t prepared_vectors(int64_t columns, int64_t count) {
  if (count <= kFewVectors) return count * prepared_vector(columns);
  return (count + kLaneVectors - 1) / kLaneVectors * kLaneVectors * columns;
}

/// Brings `count` vectors x[v * x_stride + column] into the order that so many are multiplied in with rows of that
/// format. A few for int8 become 16-bit integers with one scale per vector: an error of at most |x|max / 65,534 for up
/// to 2,064 columns, in proportion to the columns beyond.
void prepare_vectors(WeightFormat format, int64_t columns, const float* x, int64_t x_stride, int64_t count,
                     float* prepared);

/// y[v * y_stride + row - first] = sum over columns of W[row][column] x_v[column], for rows [first, last) and `count`
/// prepared vectors, at most kMostVectors. Weights are widened to float32 and summed there (int8 with a few vectors:
/// exact integer sums). A result has the same bits whatever rows are computed with it, and whatever vectors, as long as
/// they are few, or as long as they are more.
void multiply_rows(const WeightRows& weights, int64_t first, int64_t last, const float* prepared, int64_t count,
                   float* y, int64_t y_stride);

}  // namespace tamis::kernels
