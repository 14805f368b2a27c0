#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "tamis/ops/attention.h"

// What the blocked forms of all attentions share: operators in plain torch, for every device, in O(T) memory. Queries
// are processed block by block, each with all keys that it may see, so that a temporary tensor of pairs [rows, queries,
// keys] has a bounded size. A row of pairs is always complete: no result is corrected later.
//
// Sequences and heads are rows: N = B H, row b H + h. Within a call no value is read from the device, except what a
// constructor says.

namespace tamis::ops {

/// During its lifetime torch.autocast does not change the dtypes of products: the blocked forms choose their own, and
/// the backward pass may run inside of the context.
class WithoutAutocast {
  c10::impl::ExcludeDispatchKeyGuard excluded_{c10::autocast_dispatch_keyset};
};

/// float64, or float32 on a device without it (Apple's).
at::ScalarType widest_dtype(at::Device device);

/// Numbers that a temporary tensor of pairs may hold: what fits into a processor's cache, or 64 MiB of float32 on other
/// devices.
int64_t pair_budget(at::Device device);

/// Where each token's document begins, and how many tokens of it there are up to each one: int64 [B, T].
struct DocumentOrder {
  at::Tensor start, rank;

  explicit DocumentOrder(const at::Tensor& document_BT);
};

struct AttentionSizes {
  int64_t B, T_q, T_k, H;

  AttentionSizes(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK)
      : B(q_BTHK.size(0)), T_q(q_BTHK.size(1)), T_k(k_BTHK.size(1)), H(q_BTHK.size(2)) {}
  bool empty() const { return B * T_q * H == 0; }
};

/// How queries are cut into blocks, by sizes alone.
struct BlockCut {
  bool banded;    // every block has the same number of keys; else all keys before the end of the block
  int64_t block;  // queries
  int64_t reach;  // keys before the block's first query, if banded: a multiple of `block`

  /// `span`: keys that a query sees at most, its own position included.
  BlockCut(const AttentionSizes& sizes, int64_t span, at::Device device);
  bool operator==(const BlockCut&) const = default;
};

class QueryBlocks;

/// Some blocks of some rows, which are processed together. Pairs are a contiguous tensor [rows * blocks, queries,
/// keys].
class BlockStep {
 public:
  int64_t first_row, rows, blocks, queries, keys;

  /// The step's part of what query_rows returned: [rows * blocks, queries, D].
  at::Tensor of_queries(const at::Tensor& x_NTD) const;
  /// The step's part of what key_rows returned: [rows * blocks, keys, D].
  at::Tensor of_keys(const at::Tensor& x_NTD) const;
  /// Writes the step's part of query rows.
  void set_queries(const at::Tensor& x_NTD, const at::Tensor& value) const;
  /// Adds to the step's part of key rows; keys that several blocks see get the sum.
  void add_to_keys(const at::Tensor& x_NTD, const at::Tensor& value) const;
  /// Adds pairs^T of_queries.
  void add_products_to_keys(const at::Tensor& x_NTD, const at::Tensor& pairs, const at::Tensor& of_queries) const;

  /// Pairs as [rows, blocks, queries, keys].
  at::Tensor by_row(const at::Tensor& pairs) const { return pairs.view({rows, blocks, queries, keys}); }
  /// One number for each row, [rows, 1, 1, 1].
  at::Tensor per_row(const at::Tensor& x_N) const { return x_N.narrow(0, first_row, rows).view({rows, 1, 1, 1}); }
  /// The step's part of a table over QueryBlocks::distances(): [..., queries, keys].
  at::Tensor of_table(const at::Tensor& table) const;

  /// Fills pairs that do not see each other.
  void hide(const at::Tensor& pairs, double value) const;
  /// The same for documents alone.
  void hide_documents(const at::Tensor& pairs, double value) const;

 private:
  friend class QueryBlocks;
  BlockStep(const QueryBlocks& plan, int64_t first_row, int64_t rows, int64_t first_block, int64_t blocks);

  const QueryBlocks& plan_;
  int64_t first_query_, first_key_;  // of the rows
};

class QueryBlocks {
 public:
  /// With documents and without a narrow window, reads the first visible key of every block from the device, once.
  /// With keys_before `span` must be at least T_k + T_q, and distances() and tables have no meaning.
  QueryBlocks(const AttentionSizes& sizes, int64_t span, const AttentionRange& range, const at::TensorOptions& options);

  /// Rows in the dtype of the options, [N, T, D], with zero rows where a block has no query or key. Those of keys that
  /// all queries see may be a view of x, as in a cache of B = 1 whose heads lie one after the other.
  at::Tensor query_rows(const at::Tensor& x_BTHD) const;
  at::Tensor key_rows(const at::Tensor& x_BTHD) const;
  at::Tensor zero_query_rows(int64_t D) const;
  at::Tensor zero_key_rows(int64_t D) const;
  /// Back to [B, T, H, D], in the dtype of the rows.
  at::Tensor from_query_rows(const at::Tensor& x_NTD) const;
  at::Tensor from_key_rows(const at::Tensor& x_NTD) const;
  /// Position of the first query row and the first key row. Keys before position 0 do not exist.
  int64_t query_origin() const { return keys_before_ ? sizes_.T_k : sizes_.T_k - sizes_.T_q; }
  int64_t key_origin() const { return cut_.banded ? query_origin() - cut_.reach : 0; }

  /// i - j for a block and the most keys that a block has, int64 [block, keys]; negative for newer keys. Blocks with
  /// fewer queries or keys use the end of it.
  at::Tensor distances() const;

  /// Ranges of rows for which tables [rows, block, keys] fit the budget, and the steps of one.
  struct RowRange {
    int64_t first, count;
  };
  std::vector<RowRange> row_ranges() const;
  std::vector<BlockStep> steps(const RowRange& range) const;
  std::vector<BlockStep> steps() const;

 private:
  friend class BlockStep;

  int64_t row_count() const { return sizes_.B * sizes_.H; }
  int64_t block_count() const { return (sizes_.T_q + cut_.block - 1) / cut_.block; }
  int64_t most_keys() const { return cut_.banded ? cut_.reach + cut_.block : sizes_.T_k; }
  int64_t query_row_length() const { return cut_.banded ? block_count() * cut_.block : sizes_.T_q; }
  int64_t key_row_length() const { return cut_.banded ? cut_.reach + query_row_length() : sizes_.T_k; }
  at::Tensor rows_of(const at::Tensor& x_BTHD, int64_t row_length, int64_t first, int64_t at, int64_t count) const;
  void find_first_keys(const at::Tensor& document_BT);

  AttentionSizes sizes_;
  BlockCut cut_;
  int64_t span_;
  bool strict_, keys_before_;
  at::TensorOptions options_;
  at::Tensor hidden_;                         // bool [block, most_keys], by distance
  at::Tensor query_document_, key_document_;  // int64 [N, T, 1], if documents are given
  std::vector<int64_t> first_key_;            // of each block, if documents are given and not banded
};

}  // namespace tamis::ops
