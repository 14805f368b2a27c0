#pragma once

// What decoding a token through weights that are streamed from memory has in common, whatever the model.

#include <algorithm>
#include <cstdint>
#include <span>

#include "tamis/kernels/matvec.h"

namespace tamis::models {

/// Rows of a product that a thread takes at a time.
inline constexpr int64_t kItemRows = 32;
constexpr int64_t row_items(int64_t rows) {
  return (rows + kItemRows - 1) / kItemRows;
}

/// x_BD += W y for the rows of one item, D in all; `prepared`: the B vectors y, `products`: room for B * kItemRows.
inline void add_item(const kernels::WeightRows& weights, int64_t item, const float* prepared, int64_t B, int64_t D,
                     float* products, float* x_BD) {
  const int64_t first = item * kItemRows, last = std::min(D, first + kItemRows);
  kernels::multiply_rows(weights, first, last, prepared, B, products, kItemRows);
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t row = first; row < last; ++row) x_BD[b * D + row] += products[b * kItemRows + row - first];
  }
}

/// Takes the states through `make_pass(states, x_BD)` in groups of as many as are fastest together; all passes share
/// the scratch memory of the first state, as much as the first group, which is the largest, needs.
template <typename State, typename MakePass>
void pass_in_groups(kernels::WeightFormat format, std::span<State* const> states, float* x_BD, int64_t D,
                    const MakePass& make_pass) {
  const auto together = static_cast<size_t>(kernels::vectors_together(format));
  float* scratch = nullptr;
  for (size_t b = 0; b < states.size(); b += together) {
    auto pass = make_pass(states.subspan(b, std::min(together, states.size() - b)), x_BD + static_cast<int64_t>(b) * D);
    if (scratch == nullptr) scratch = states.front()->scratch(pass.scratch_numbers());
    pass.run(scratch);
  }
}

}  // namespace tamis::models
