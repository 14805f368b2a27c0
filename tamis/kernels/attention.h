#pragma once

#include <algorithm>
#include <cstdint>

#include "tamis/kernels/rows.h"

// What the kernels of all attentions share. Queries are processed in blocks, one query per lane, and keys in panels.
// The scores of a panel are [kPanelKeys][kQueryBlock], a row for each key. All positions are absolute.

namespace tamis::kernels {

inline constexpr int64_t kQueryBlock = 64;  // queries of a block, at most
inline constexpr int64_t kNoWindow = int64_t{1} << 62;

/// `keys` rounded up to whole panels.
constexpr int64_t whole_panels(int64_t keys) {
  return (keys + kPanelKeys - 1) / kPanelKeys * kPanelKeys;
}

/// Keys and values of a sequence and head in float32, rows padded and adjacent. Only rows of keys that a query sees are
/// read.
struct PackedKeys {
  const float* keys = nullptr;    // [T_k][padded(key_dim)]
  const float* values = nullptr;  // [T_k][padded(value_dim)]
  int64_t key_dim = 0;
  int64_t value_dim = 0;

  const float* key(int64_t position) const { return keys + position * padded(key_dim); }
  const float* value(int64_t position) const { return values + position * padded(value_dim); }
};

/// Which keys a query sees: those of its document among the `window` newest up to its own (strict: without its own).
struct Visibility {
  int64_t window = kNoWindow;
  bool strict = false;
  int64_t keys = kNoWindow;                 // T_k, if queries come after the last key
  const float* document = nullptr;          // number of the document of each position; null: one document
  const int64_t* document_start = nullptr;  // of each position, the first of the same document

  int64_t first_key(int64_t query) const {
    const int64_t newest = query - (strict ? 1 : 0);
    const int64_t first = std::max<int64_t>(0, newest - window + 1);
    return document_start == nullptr ? first : std::max(first, document_start[query]);
  }
  int64_t end_key(int64_t query) const { return std::min(query + (strict ? 0 : 1), keys); }
};

/// Queries [first, first + count) of a head. Row 0 of q is position query_origin.
struct QueryBlock {
  int64_t first = 0;
  int64_t count = 0;

  int64_t lanes() const { return padded(count); }
  int64_t first_key(const Visibility& visibility) const {
    int64_t key = visibility.first_key(first);
    if (visibility.document_start != nullptr) {
      for (int64_t i = 1; i < count; ++i) key = std::min(key, visibility.first_key(first + i));
    }
    return key;
  }
  int64_t end_key(const Visibility& visibility) const { return visibility.end_key(first + count - 1); }
};

/// Numbers of scratch memory of a block's rows and of their transpose (LoadBlock).
constexpr int64_t query_scratch(int64_t dim) {
  return 2 * kQueryBlock * padded(dim);
}

/// Reads rows [first, last) of `dim` numbers into float32 rows of padded(dim), one after the other.
void pack_rows(const Rows& rows, int64_t first, int64_t last, int64_t dim, float* out);

/// Writes rows [first, last), rounded to their storage, from float32 rows of padded(dim).
void unpack_rows(const float* in, int64_t first, int64_t last, int64_t dim, const Rows& rows);

}  // namespace tamis::kernels
