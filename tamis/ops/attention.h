#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tamis/kernels/attention.h"
#include "tamis/ops/scratch.h"

// What all attentions over [B, T, H, D] share: checks, keys and values as the kernels read them, the cut into chunks.

namespace tamis::ops {

/// Which keys a query sees.
struct AttentionRange {
  std::optional<int64_t> window;       // keys, the query's own included; unset: all before it
  bool strict = false;                 // the query's own key is hidden
  std::optional<at::Tensor> document;  // int [B, positions]: a query sees only keys of its own document
  bool keys_before = false;            // all keys come before the first query; else queries have the last T_q keys

  int64_t query_origin(int64_t queries, int64_t keys) const { return keys_before ? keys : keys - queries; }
};

/// Throws c10::ValueError, which names `op`, the argument and what was expected, when the arguments do not fit.
void check_attention(const char* op, const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                     const AttentionRange& range);

/// The mask of visible pairs, bool [B or 1, 1, T_q, T_k], for the definitions in plain torch.
at::Tensor visible_pairs(int64_t queries, int64_t keys, const AttentionRange& range, at::Device device);

/// The dtype of computations on `storage`: float32 for half precision.
at::ScalarType computing_dtype(at::ScalarType storage);
at::Tensor widened(const at::Tensor& x);

/// The scale of scores: as given, or 1 / sqrt(key_dim).
double score_scale(std::optional<double> given, int64_t key_dim);

/// Whether there are kernels for the dtype: float32, and bfloat16 as storage.
bool attention_has_fused(at::ScalarType dtype);

/// What the kernels read of one head of a sequence.
struct AttentionHead {
  int64_t batch, head;
  kernels::PackedKeys packed;
  kernels::Visibility visibility;
  int64_t query_origin;  // position of the first query
  kernels::Rows q;       // its queries
};

/// The part of a head in a contiguous float32 tensor [B, H, T_q, ...], as structures of float32.
template <typename Structure = float>
Structure* of_head(const at::Tensor& x_BHTx, const AttentionHead& head) {
  const int64_t numbers_of_head = x_BHTx.stride(1), at = head.batch * x_BHTx.size(1) + head.head;
  return reinterpret_cast<Structure*>(x_BHTx.mutable_data_ptr<float>() + at * numbers_of_head);
}

/// Queries, and keys and values packed for the kernels unless they are packed already. Keys that no query sees are not
/// read.
class AttentionProblem {
 public:
  AttentionProblem(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                   const AttentionRange& range);

  int64_t B, T_q, T_k, H, K, V;
  int64_t query_origin;  // position of the first query

  AttentionHead head(int64_t batch, int64_t head) const;

  /// Calls work(head, block, memory) for every block of queries of every head on ATen's threads, in any order. `memory`
  /// is empty.
  using Answer =
      std::function<void(const AttentionHead& head, const kernels::QueryBlock& block, ScratchMemory<float>& memory)>;
  void for_each_block(const Answer& work) const;

  /// Writes the gradients of k and v. work(head, first, last, dk, dv, memory) adds those from the queries [first, last)
  /// to dk and dv, rows as packed. The queries of a head are cut into chunks with sums of their own, which are added in
  /// order; the cut depends on sizes alone.
  using AddKeyGradients = std::function<void(const AttentionHead& head, int64_t first, int64_t last, float* dk,
                                             float* dv, ScratchMemory<float>& memory)>;
  void gather_key_gradients(const AddKeyGradients& work, const at::Tensor& dk_BTHK, const at::Tensor& dv_BTHV) const;

 private:
  bool in_place() const { return k_.defined(); }
  void pack(const at::Tensor& k, const at::Tensor& v);
  void number_documents(const at::Tensor& document);
  kernels::Visibility visibility(int64_t batch) const;
  float* packed_rows(int64_t batch, int64_t head) const;
  int64_t chunks() const;
  int64_t positions() const { return query_origin + T_q; }

  at::Tensor q_;  // rows adjacent
  AttentionRange range_;
  at::Tensor k_, v_;                     // defined if the kernels read them as they are
  at::Tensor packed_;                    // else: float32 [B, H, whole_panels(T_k) * (padded(K) + padded(V))]
  std::vector<float> document_;          // [B, positions] or empty
  std::vector<int64_t> document_start_;  // [B, positions] or empty
  std::vector<int64_t> first_key_;       // [B]: keys before it are seen by no query
};

}  // namespace tamis::ops
