#include "tamis/ops/tiled_product.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>

#include "tamis/ops/onednn_linear.h"
#include "tamis/ops/parallel.h"

namespace tamis::ops {
namespace {

using at::Tensor;

/// Tiles of [M, N], either whole rows or whole columns of the result. Every tile packs its part of B again, which costs
/// as much as some 200 rows, so tiles of rows are high; their products go straight into the result. Results with few
/// rows are divided into columns instead, whose products are copied. Small products are one tile: less work than a call
/// costs.
struct Tiles {
  static constexpr int64_t kMultiple = 64, kManyRows = 1024;
  static constexpr int64_t kSmallWork = int64_t{1} << 21;  // multiplications

  int64_t rows, columns;  // of a tile
  int64_t down, across;   // tiles

  Tiles(int64_t M, int64_t N, int64_t K) : rows(M), columns(N) {
    if (M * N * K > kSmallWork) {
      if (M >= N || M >= kManyRows) {
        rows = piece(M, 16, M < 2 * kManyRows ? 256 : 512);
      } else {
        columns = piece(N, 8, 256);
      }
    }
    down = divide_up(M, rows);
    across = divide_up(N, columns);
  }

  int64_t count() const { return down * across; }

 private:
  /// The size of pieces of `size`: at most `pieces`, and none below `least` but the last.
  static int64_t piece(int64_t size, int64_t pieces, int64_t least) {
    return std::min(size, std::max(round_up(divide_up(size, pieces), kMultiple), least));
  }
};

}  // namespace

Tensor tiled_product(const Tensor& a_MK, const Tensor& b_KN) {
  const int64_t M = a_MK.size(0), N = b_KN.size(1);
  const Tiles tiles(M, N, a_MK.size(1));
  const Tensor result = at::empty({M, N}, a_MK.options());
  parallel_gemms(tiles.count(), [&](int64_t tile) {
    const int64_t row = tile / tiles.across * tiles.rows, column = tile % tiles.across * tiles.columns;
    const int64_t rows = std::min(tiles.rows, M - row), columns = std::min(tiles.columns, N - column);
    check_onednn_memory();
    Tensor part = result.narrow(0, row, rows).narrow(1, column, columns);
    if (tiles.across == 1) {
      at::mm_out(part, a_MK.narrow(0, row, rows), b_KN);
    } else {
      part.copy_(at::mm(a_MK.narrow(0, row, rows), b_KN.narrow(1, column, columns)));
    }
  });
  return result;
}

}  // namespace tamis::ops
