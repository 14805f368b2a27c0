#pragma once

#include <cstdint>

// The passes between the bfloat16 products of the vocabulary head, on raw pointers: no torch, no allocation, no threads
// in here. Highway compiles the bodies for every instruction set and picks at run time. bfloat16 numbers are their
// bits, uint16_t. Logits have entries as rows and tokens as columns, so that a lane holds a token.

namespace tamis::kernels {

inline constexpr int64_t kTokenMultiple = 32;  // the tokens of a block are padded to a multiple of this

/// A block of logits of `entries` rows and `tokens` columns, dense.
struct EntryBlock {
  int64_t entries = 0;  // at least 1
  int64_t tokens = 0;   // a multiple of kTokenMultiple
};

/// maximum_r = max_n z_nr, sum_r = sum_n exp(z_nr - maximum_r) and, if given, e_nr = exp(z_nr - maximum_r)
/// rounded to bfloat16. A NaN among the logits of a token makes its sum NaN.
void exp_of_columns(const EntryBlock& block, const float* z_CR, float* maximum_R, float* sum_R, uint16_t* e_CR);

/// p_nr = e_nr * factor_r, rounded to bfloat16, in two layouts: rows of entries as they are, and pairs of rows
/// interleaved, p_2c,r next to p_2c+1,r, up to `padded_entries`, with zeros for missing entries.
void scale_columns(const EntryBlock& block, const uint16_t* e_CR, const float* factor_R, int64_t padded_entries,
                   uint16_t* p_CR, uint16_t* pairs_CR);

/// out_dc = in_cd for a dense `in` of `rows` rows; rows of `out` have padded_rows numbers, zeros at their ends.
void transpose(const uint16_t* in_CD, int64_t rows, int64_t columns, int64_t padded_rows, uint16_t* out_DC);

/// A sum of 24 bits, a float32 without its 8 last ones: the upper 16 bits are a bfloat16, the lower 8 are stored apart.
void join_sum(const uint16_t* upper, const uint8_t* lower, int64_t size, float* sum);
/// Rounds to nearest, ties to even.
void split_sum(const float* sum, int64_t size, uint16_t* upper, uint8_t* lower);

/// Rounds to nearest, ties to even.
void round_to_bfloat16(const float* in, int64_t size, uint16_t* out);

}  // namespace tamis::kernels
