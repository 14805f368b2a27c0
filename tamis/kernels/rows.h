#pragma once

#include <cstdint>

namespace tamis::kernels {

enum class Storage { kFloat32, kBFloat16, kFloat64 };

/// A matrix in memory: row t starts at data + t * stride elements; a row's elements are adjacent.
struct Rows {
  void* data = nullptr;
  int64_t stride = 0;
  Storage storage = Storage::kFloat32;
};

inline constexpr int64_t kLanes = 16;      // rows in scratch memory are padded with zeros to a multiple of this
inline constexpr int64_t kPanelKeys = 64;  // keys of a panel: an accept mask of one 64-bit word

/// Rows are scaled to unit length by 1 / max(|x|, kMinNorm).
inline constexpr double kMinNorm = 1e-12;

constexpr int64_t padded(int64_t size) {
  return (size + kLanes - 1) / kLanes * kLanes;
}

}  // namespace tamis::kernels
