#include "tamis/ops/attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "tamis/ops/checks.h"
#include "tamis/ops/parallel.h"
#include "tamis/ops/rows.h"
#include "tamis/ops/scratch.h"

namespace tamis::ops {

using at::Tensor;
using kernels::kPanelKeys;
using kernels::kQueryBlock;
using kernels::padded;
using kernels::whole_panels;

namespace {

/// Rows of whole vectors in float32, one after the other, as in a decoding cache.
bool is_packed(const Tensor& x_BTHD) {
  const int64_t D = x_BTHD.size(3);
  return x_BTHD.scalar_type() == at::kFloat && D == padded(D) && x_BTHD.stride(3) == 1 && x_BTHD.stride(1) == D;
}

}  // namespace

void check_attention(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionRange& range) {
  // Queries after all keys may be more than the keys.
  check_queries_keys_values(op, range.keys_before ? q.narrow(1, 0, 0) : q, k, v);
  TORCH_CHECK_VALUE(!range.window || *range.window >= 1, op, ": window must be at least 1, but is ",
                    range.window.value_or(0));
  if (range.document && range.keys_before) {
    check_document(op, *range.document, q, k.sym_size(1) + q.sym_size(1), "B and T_k + T_q");
  } else if (range.document) {
    check_document(op, *range.document, k, k.sym_size(1), "B and T_k of k");
  }
}

Tensor visible_pairs(int64_t queries, int64_t keys, const AttentionRange& range, at::Device device) {
  const Tensor position = at::arange(keys, at::TensorOptions(device).dtype(at::kLong));
  const Tensor distance = position.slice(0, keys - queries).unsqueeze(1) - position - (range.strict ? 1 : 0);
  Tensor visible = distance >= 0;
  if (range.window) visible = visible.logical_and(distance < *range.window);
  visible = visible.unsqueeze(0).unsqueeze(0);
  if (range.document) {
    const Tensor same = range.document->slice(1, keys - queries).unsqueeze(2) == range.document->unsqueeze(1);
    visible = visible.logical_and(same.unsqueeze(1));
  }
  return visible;
}

at::ScalarType computing_dtype(at::ScalarType storage) {
  return storage == at::kBFloat16 || storage == at::kHalf ? at::kFloat : storage;
}

Tensor widened(const Tensor& x) {
  return x.to(computing_dtype(x.scalar_type()));
}

double score_scale(std::optional<double> given, int64_t key_dim) {
  return given.value_or(1 / std::sqrt(static_cast<double>(key_dim)));
}

bool attention_has_fused(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16;
}

AttentionProblem::AttentionProblem(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionRange& range)
    : B(q.size(0)),
      T_q(q.size(1)),
      T_k(k.size(1)),
      H(q.size(2)),
      K(q.size(3)),
      V(v.size(3)),
      query_origin(range.query_origin(T_q, T_k)),
      q_(with_adjacent_rows(q)),
      range_(range) {
  if (range.document) number_documents(*range.document);
  for (int64_t b = 0; b < B; ++b) {
    const kernels::Visibility seen = visibility(b);
    int64_t first = T_q == 0 ? T_k : seen.first_key(query_origin);
    for (int64_t i = query_origin; i < positions() && seen.document_start != nullptr; ++i) {
      first = std::min(first, seen.first_key(i));
    }
    first_key_.push_back(std::min(first, T_k));
  }
  if (is_packed(k) && is_packed(v)) {
    k_ = k;
    v_ = v;
  } else {
    pack(with_adjacent_rows(k), with_adjacent_rows(v));
  }
}

void AttentionProblem::number_documents(const Tensor& document) {
  const Tensor ids = document.to(at::kLong).contiguous();
  const int64_t all = positions();
  document_.resize(static_cast<size_t>(B * all));
  document_start_.resize(document_.size());
  for (int64_t b = 0; b < B; ++b) {
    std::unordered_map<int64_t, int64_t> start;
    std::unordered_map<int64_t, int64_t> number;
    for (int64_t j = b * all; j < (b + 1) * all; ++j) {
      const int64_t id = ids.const_data_ptr<int64_t>()[j];
      document_start_[j] = start.try_emplace(id, j - b * all).first->second;
      document_[j] = static_cast<float>(number.try_emplace(id, static_cast<int64_t>(number.size())).first->second);
    }
  }
}

kernels::Visibility AttentionProblem::visibility(int64_t batch) const {
  kernels::Visibility visibility;
  visibility.window = range_.window.value_or(kernels::kNoWindow);
  visibility.strict = range_.strict;
  if (range_.keys_before) visibility.keys = T_k;
  if (!document_.empty()) {
    visibility.document = document_.data() + batch * positions();
    visibility.document_start = document_start_.data() + batch * positions();
  }
  return visibility;
}

float* AttentionProblem::packed_rows(int64_t batch, int64_t head) const {
  return packed_.mutable_data_ptr<float>() + (batch * H + head) * whole_panels(T_k) * (padded(K) + padded(V));
}

AttentionHead AttentionProblem::head(int64_t batch, int64_t head) const {
  const auto first_row = [&](const Tensor& x) {
    return x.const_data_ptr<float>() + batch * x.stride(0) + head * x.stride(2);
  };
  const float* keys = in_place() ? first_row(k_) : packed_rows(batch, head);
  const float* values = in_place() ? first_row(v_) : keys + whole_panels(T_k) * padded(K);
  return {batch, head, {keys, values, K, V}, visibility(batch), query_origin, rows_of(q_, batch, head)};
}

void AttentionProblem::pack(const Tensor& k, const Tensor& v) {
  constexpr int64_t kPiece = 1024;  // rows
  const int64_t rows = whole_panels(T_k), pieces = (rows + kPiece - 1) / kPiece;
  packed_ = at::empty({B, H, rows * (padded(K) + padded(V))}, k.options().dtype(at::kFloat));
  parallel_items(B * H * pieces, [&](int64_t item) {
    const int64_t batch = item / pieces / H, head = item / pieces % H, first = item % pieces * kPiece;
    const auto pack_piece = [&](const kernels::Rows& in, int64_t dim, float* out) {
      const int64_t width = padded(dim), last = std::min(first + kPiece, rows);
      const int64_t begin = std::clamp(first_key_[batch], first, last), end = std::clamp(T_k, begin, last);
      std::fill(out + first * width, out + begin * width, 0.0f);
      kernels::pack_rows(in, begin, end, dim, out + begin * width);
      std::fill(out + end * width, out + last * width, 0.0f);
    };
    float* keys = packed_rows(batch, head);
    pack_piece(rows_of(k, batch, head), K, keys);
    pack_piece(rows_of(v, batch, head), V, keys + rows * padded(K));
  });
}

void AttentionProblem::for_each_block(const Answer& work) const {
  const int64_t blocks = (T_q + kQueryBlock - 1) / kQueryBlock;
  parallel_items(B * H * blocks, [&](int64_t item) {
    const int64_t at = item / blocks, first = (blocks - 1 - item % blocks) * kQueryBlock;  // those with most keys first
    const kernels::QueryBlock block{query_origin + first, std::min(kQueryBlock, T_q - first)};
    work(head(at / H, at % H), block, thread_memory<float>());
  });
}

int64_t AttentionProblem::chunks() const {
  constexpr int64_t kEnoughItems = 16, kShortest = 512;
  const int64_t heads = std::max<int64_t>(1, B * H), wanted = (kEnoughItems + heads - 1) / heads;
  return std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, T_q / kShortest));
}

void AttentionProblem::gather_key_gradients(const AddKeyGradients& work, const Tensor& dk, const Tensor& dv) const {
  const int64_t parts = chunks(), key_numbers = T_k * padded(K), numbers = T_k * (padded(K) + padded(V));
  // Work mostly grows with the position: then the first p chunks hold sqrt(p / parts) of the queries.
  const bool even = range_.window || range_.keys_before;
  const auto border = [&](int64_t part) {
    const double share = static_cast<double>(part) / static_cast<double>(parts);
    const double queries = static_cast<double>(T_q) * (even ? share : std::sqrt(share));
    return part == parts ? T_q : static_cast<int64_t>(queries) / kQueryBlock * kQueryBlock;
  };
  const auto add = [&](int64_t at, int64_t part, float* sums, ScratchMemory<float>& memory) {
    std::fill(sums, sums + numbers, 0.0f);
    const int64_t first = query_origin + border(part), last = query_origin + border(part + 1);
    if (first < last) work(head(at / H, at % H), first, last, sums, sums + key_numbers, memory);
  };
  const auto write = [&](int64_t at, const float* sums) {
    kernels::unpack_rows(sums, 0, T_k, K, rows_of(dk, at / H, at % H));
    kernels::unpack_rows(sums + key_numbers, 0, T_k, V, rows_of(dv, at / H, at % H));
  };
  if (parts == 1) {
    parallel_items(B * H, [&](int64_t at) {
      ScratchMemory<float>& memory = thread_memory<float>();
      float* sums = memory.take(numbers);
      add(at, 0, sums, memory);
      write(at, sums);
    });
    return;
  }
  const Tensor partial = at::empty({B * H, parts, numbers}, q_.options().dtype(at::kFloat));
  float* all = partial.mutable_data_ptr<float>();
  parallel_items(B * H * parts,
                 [&](int64_t item) { add(item / parts, item % parts, all + item * numbers, thread_memory<float>()); });
  parallel_items(B * H, [&](int64_t at) {
    float* sums = all + at * parts * numbers;
    for (int64_t part = 1; part < parts; ++part) {
      for (int64_t i = 0; i < numbers; ++i) sums[i] += sums[part * numbers + i];
    }
    write(at, sums);
  });
}

}  // namespace tamis::ops
