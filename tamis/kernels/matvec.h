#pragma once

#include <cstdint>

#include "tamis/kernels/rows.h"

// Products of a weight matrix with one vector or a few, as decoding needs them: every weight is read once and nothing
// else counts. No torch, no allocation, no threads in here.

namespace tamis::kernels {

enum class WeightFormat { kFloat32, kBFloat16, kInt8 };

/// A matrix [rows][columns] whose rows follow each other without gaps.
struct WeightRows {
  const void* data = nullptr;
  const float* scale = nullptr;  // [rows]: int8 only, what the integers of a row are multiplied by
  int64_t columns = 0;
  WeightFormat format = WeightFormat::kFloat32;
};

inline constexpr int64_t kMostVectors = 8;  // that one call multiplies

/// Numbers that a vector takes once it is prepared.
constexpr int64_t prepared_vector(int64_t columns) {
  constexpr int64_t kChunk = 64;  // at least the columns that one step of any format takes
  return kLanes + (columns + kChunk - 1) / kChunk * kChunk;
}

/// Brings `count` vectors x[v * x_stride + column] into the order that the rows' format is multiplied in, at
/// prepared[v * prepared_vector(columns)]. For int8 they become 16-bit integers with one scale per vector: an error of
/// at most |x|max / 65,534 for up to 2,064 columns, in proportion to the columns beyond.
void prepare_vectors(WeightFormat format, int64_t columns, const float* x, int64_t x_stride, int64_t count,
                     float* prepared);

/// y[v * y_stride + row - first] = sum over columns of W[row][column] x_v[column], for rows [first, last) and `count`
/// prepared vectors, at most kMostVectors. Weights are widened to float32 and summed there (int8: exact integer sums).
/// A result has the same bits whatever rows and vectors are computed with it.
void multiply_rows(const WeightRows& weights, int64_t first, int64_t last, const float* prepared, int64_t count,
                   float* y, int64_t y_stride);

}  // namespace tamis::kernels
