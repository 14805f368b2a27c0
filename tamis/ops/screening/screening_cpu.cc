// Cuts the queries of every head into chunks and runs a pass over each on ATen's threads. The cut depends on sizes
// alone, never on the number of threads, and every sum has a fixed order, so the bits are always the same.

#include "tamis/ops/screening/screening_cpu.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "tamis/ops/parallel.h"
#include "tamis/ops/rows.h"
#include "tamis/ops/scratch.h"
#include "tamis/ops/screening/screening_cpu_testing.h"
#include "tamis/ops/screening/screening_heads.h"
#include "tamis/ops/screening/screening_index.h"
#include "tamis/ops/screening/screening_kernel.h"

namespace tamis::ops {
namespace {

using at::Tensor;
using kernels::padded;

/// Queries [first, last) of one sequence and head.
struct Chunk {
  int64_t batch, head, first, last;
  int64_t part;  // number of the chunk in its sequence and head
};

constexpr int64_t kWideSpan = 1024;  // keys: a head that sees more is wide

/// The arguments of the operator as the kernels read them.
template <typename Real>
struct Problem {
  Problem(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const Tensor& s_w, const Tensor& s_r,
          const ScreeningOptions& options, const SkippingControl& skipping_control, bool derivative)
      : q(with_adjacent_rows(q_in)),
        k(with_adjacent_rows(k_in)),
        v(with_adjacent_rows(v_in)),
        control(skipping_control) {
    if (options.gate) gate = with_adjacent_rows(*options.gate);
    B = q.size(0), T_q = q.size(1), H = q.size(2), K = q.size(3), T_k = k.size(1), V = v.size(3);
    const Tensor all_s_w = s_w.detach().to(at::kDouble).contiguous();
    const Tensor all_s_r = s_r.detach().to(at::kDouble).contiguous();
    for (int64_t h = 0; h < H; ++h) {
      heads.push_back(prepare_head<Real>(all_s_w.const_data_ptr<double>()[h], all_s_r.const_data_ptr<double>()[h], K, V,
                                         T_k, options, derivative));
    }
    if (options.document) number_documents(*options.document);
  }

  /// Documents become small numbers that lanes of similarities can compare.
  void number_documents(const Tensor& document) {
    const Tensor ids = document.to(at::kLong).contiguous();
    documents.resize(static_cast<size_t>(B * T_k));
    for (int64_t b = 0; b < B; ++b) {
      std::unordered_map<int64_t, int64_t> number;
      for (int64_t j = b * T_k; j < (b + 1) * T_k; ++j) {
        const auto next = static_cast<int64_t>(number.size());
        documents[j] = static_cast<Real>(number.try_emplace(ids.const_data_ptr<int64_t>()[j], next).first->second);
      }
    }
  }

  /// Cuts the queries of every head into chunks. Each chunk packs the span - 1 keys before it again, so it is several
  /// spans long; a chunk of a wide head has at most `most_for_wide` queries. All narrow heads have the same cut.
  /// Lengths are rounded up to whole tiles, which are packed faster.
  void cut(int64_t most_for_wide) {
    int64_t widest_narrow = 1;
    for (const PreparedHead<Real>& head : heads) {
      if (!is_wide(head)) widest_narrow = std::max(widest_narrow, head.constants.span);
    }
    const int64_t narrow_length = padded(std::max<int64_t>(1024, 4 * widest_narrow));
    for (int64_t h = 0; h < H; ++h) {
      const int64_t length =
          is_wide(heads[h]) ? padded(std::min(2 * heads[h].constants.span, most_for_wide)) : narrow_length;
      for (int64_t b = 0; b < B; ++b) {
        for (int64_t first = 0, part = 0; first < T_q; first += length, ++part) {
          const int64_t last = std::min(first + length, T_q);
          chunks.push_back({b, h, T_k - T_q + first, T_k - T_q + last, part});
          most_parts = std::max(most_parts, part + 1);
        }
      }
    }
    counts.resize(chunks.size());
    // Wide heads first, so that the threads end together; then in the order of memory.
    std::stable_sort(chunks.begin(), chunks.end(), [&](const Chunk& x, const Chunk& y) {
      return std::tuple(!is_wide(heads[x.head]), x.batch, x.first) <
             std::tuple(!is_wide(heads[y.head]), y.batch, y.first);
    });
  }

  static bool is_wide(const PreparedHead<Real>& head) { return head.constants.span > kWideSpan; }

  /// A pass over `chunk`, with its ring in `memory`.
  kernels::ScreeningPass<Real> pass(const Chunk& chunk, int64_t block, ScratchMemory<Real>& memory) {
    const int64_t h = chunk.head;
    kernels::ScreeningPass<Real> pass;
    pass.head = heads[h].constants;
    pass.q = rows_of(q, chunk.batch, h);
    pass.k = rows_of(k, chunk.batch, h);
    pass.v = rows_of(v, chunk.batch, h);
    if (gate.defined()) pass.gate = rows_of(gate, chunk.batch, h);
    pass.query_origin = T_k - T_q;
    pass.first = chunk.first;
    pass.last = chunk.last;
    pass.block = block;
    pass.packed = std::max<int64_t>(0, chunk.first - pass.head.span + 1);
    if (!documents.empty()) pass.document = documents.data() + chunk.batch * T_k;
    pass.ring.capacity = kernels::ring_capacity(pass.head.span, block);
    pass.ring.tiles = memory.take(pass.ring.capacity * K);
    pass.ring.values = memory.take(pass.ring.capacity * padded(V));
    pass.ring.ready = memory.template take<uint8_t>(pass.ring.capacity);
    if (control.counts != nullptr) pass.counts = &counts[&chunk - chunks.data()];
    const bool keeps_every_key = pass.head.span == T_k;
    if (keeps_every_key && chunk.last >= kernels::kSmallestBucket && control.skipping != kernels::Skipping::kNever) {
      pass.index = take_index<Real>(chunk.last, K, control.skipping, memory);
    }
    // The first tile may begin before the first key that is packed.
    const int64_t slot = pass.packed % pass.ring.capacity / kernels::kTileKeys * kernels::kTileKeys;
    std::fill_n(pass.ring.tiles + slot * K, kernels::kTileKeys * K, Real{0});
    return pass;
  }

  /// Adds up the counts of all passes.
  void report() const {
    if (control.counts == nullptr) return;
    for (const kernels::PassCounts& one : counts) {
      control.counts->visible += one.visible;
      control.counts->similarities += one.similarities;
      control.counts->bounds += one.bounds;
      control.counts->dense += one.dense;
    }
  }

  Tensor q, k, v, gate;
  SkippingControl control;
  std::vector<kernels::PassCounts> counts;  // of each chunk
  int64_t B, T_q, T_k, H, K, V;
  std::vector<PreparedHead<Real>> heads;
  std::vector<Real> documents;  // [B, T_k] or empty
  std::vector<Chunk> chunks;
  int64_t most_parts = 0;
};

template <typename Real>
Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s_w, const Tensor& s_r,
               const ScreeningOptions& options, const SkippingControl& control) {
  Problem<Real> problem(q, k, v, s_w, s_r, options, control, /*derivative=*/false);
  problem.cut(std::max<int64_t>(1024, problem.T_k / 4));
  Tensor out = at::empty({problem.B, problem.T_q, problem.H, problem.V}, v.options());
  parallel_items(static_cast<int64_t>(problem.chunks.size()), [&](int64_t item) {
    const Chunk& chunk = problem.chunks[item];
    ScratchMemory<Real>& memory = thread_memory<Real>();
    auto pass = problem.pass(chunk, block_for_span(problem.heads[chunk.head].constants.span), memory);
    pass.out = rows_of(out, chunk.batch, chunk.head);
    pass.scratch = memory.take(kernels::forward_scratch(problem.K, problem.V));
    kernels::screening_forward(pass);
  });
  problem.report();
  return out;
}

/// Gradients of a head's scalars from one chunk.
struct Sums {
  double softmask = 0, mipe_step = 0, accept = 0;
};

/// Gradients of the keys that two neighbouring chunks see, from the first and from the second chunk.
template <typename Real>
struct Boundary {
  std::vector<Real> tail, halo;  // [span - 1][padded(K) + padded(V)]
};

template <typename Real>
std::pair<Tensor, Tensor> backward(const Tensor& grad_in, const Tensor& q, const Tensor& k, const Tensor& v,
                                   const Tensor& s_w, const Tensor& s_r, const ScreeningOptions& options,
                                   const ScreeningProjections& gradients, const Tensor& result,
                                   const SkippingControl& control) {
  Problem<Real> problem(q, k, v, s_w, s_r, options, control, /*derivative=*/true);
  // A chunk shares its last span - 1 keys with the next one only, so chunks of a wide head are at least 2 spans long.
  problem.cut(std::numeric_limits<int64_t>::max());
  const Tensor grad = with_adjacent_rows(grad_in);
  const int64_t K = problem.K, V = problem.V, sums_width = padded(K) + padded(V);
  const auto& [dq, dk, dv, dgate] = gradients;
  for (const Tensor& d : {dq, dk, dv, dgate.value_or(dq), result.defined() ? result : dq}) {
    TORCH_INTERNAL_ASSERT(with_adjacent_rows(d).is_same(d));
  }
  if (problem.T_q == 0) {
    dk.zero_();
    dv.zero_();
  }

  // Of each sequence, head and chunk: gradients of s_w and s_r, and of the keys that the next chunk sees too.
  std::vector<Sums> sums(static_cast<size_t>(problem.B * problem.H * problem.most_parts));
  std::vector<Boundary<Real>> boundaries(sums.size());
  const auto index_of = [&](const Chunk& s) { return (s.batch * problem.H + s.head) * problem.most_parts + s.part; };
  const auto is_last = [&](const Chunk& s) { return s.last == problem.T_k; };
  for (const Chunk& s : problem.chunks) {
    if (is_last(s)) continue;
    auto& boundary = boundaries[index_of(s)];
    boundary.tail.resize((problem.heads[s.head].constants.span - 1) * sums_width);
    boundary.halo.resize(boundary.tail.size());
  }
  const auto work_of = [&](const Chunk& chunk, int64_t block, ScratchMemory<Real>& memory) {
    const int64_t h = chunk.head;
    kernels::ScreeningBackward<Real> work;
    work.pass = problem.pass(chunk, block, memory);
    work.pass.out = rows_of(grad, chunk.batch, h);
    if (result.defined()) work.result = rows_of(result, chunk.batch, h);
    work.dq = rows_of(dq, chunk.batch, h);
    work.dk = rows_of(dk, chunk.batch, h);
    work.dv = rows_of(dv, chunk.batch, h);
    if (options.gate) work.dgate = rows_of(*dgate, chunk.batch, h);
    return work;
  };

  parallel_items(static_cast<int64_t>(problem.chunks.size()), [&](int64_t item) {
    const Chunk& chunk = problem.chunks[item];
    ScratchMemory<Real>& memory = thread_memory<Real>();
    const int64_t span = problem.heads[chunk.head].constants.span;
    const int64_t block = block_for_span(span);
    auto work = work_of(chunk, block, memory);
    const int64_t capacity = work.pass.ring.capacity;
    work.pass.ring.rows = memory.take(capacity * padded(K));
    work.pass.ring.key_norm = memory.template take<double>(capacity);
    work.pass.ring.value_norm = memory.template take<double>(capacity);
    work.pass.scratch = memory.take(kernels::backward_scratch(K, V));
    work.sums = memory.take(capacity * sums_width);
    std::fill_n(work.sums, capacity * sums_width, Real{0});
    work.accepted_shortfall = memory.take(block * kernels::accepted_capacity(span));
    work.accepted_key = memory.template take<int32_t>(block * kernels::accepted_capacity(span));
    work.panels = memory.template take<kernels::PanelTally>(kernels::panel_capacity(span));
    if (chunk.part > 0) {
      work.halo = boundaries[index_of(chunk) - 1].halo.data();
    } else if (work.pass.packed > 0) {
      // Keys that no query can see.
      dk.select(0, chunk.batch).select(1, chunk.head).slice(0, 0, work.pass.packed).zero_();
      dv.select(0, chunk.batch).select(1, chunk.head).slice(0, 0, work.pass.packed).zero_();
    }
    if (!is_last(chunk)) work.tail = boundaries[index_of(chunk)].tail.data();
    kernels::screening_backward(work);
    sums[index_of(chunk)] = {work.d_softmask, work.d_mipe_step, work.d_accept};
  });
  problem.report();

  parallel_items(static_cast<int64_t>(problem.chunks.size()), [&](int64_t item) {
    const Chunk& chunk = problem.chunks[item];
    if (is_last(chunk)) return;
    ScratchMemory<Real>& memory = thread_memory<Real>();
    auto work = work_of(chunk, kernels::kBlockQueries, memory);
    work.pass.scratch = memory.take(kernels::backward_scratch(K, V));
    const auto& boundary = boundaries[index_of(chunk)];
    kernels::finish_keys(work, chunk.last, boundary.tail.data(), boundary.halo.data());
  });

  Tensor ds_w = at::zeros({problem.H}, s_w.options().dtype(at::kDouble));
  Tensor ds_r = at::zeros({problem.H}, s_r.options().dtype(at::kDouble));
  for (int64_t h = 0; h < problem.H; ++h) {
    Sums total;
    for (int64_t b = 0; b < problem.B; ++b) {
      for (int64_t part = 0; part < problem.most_parts; ++part) {
        const Sums& one = sums[(b * problem.H + h) * problem.most_parts + part];
        total.softmask += one.softmask;
        total.mipe_step += one.mipe_step;
        total.accept += one.accept;
      }
    }
    ds_w.mutable_data_ptr<double>()[h] = total.softmask + total.mipe_step * problem.heads[h].mipe_step_slope;
    ds_r.mutable_data_ptr<double>()[h] = total.accept;
  }
  return {ds_w.to(s_w.scalar_type()), ds_r.to(s_r.scalar_type())};
}

}  // namespace

bool screening_has_fused(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16;
}

ScreeningProjections empty_gradients(const Tensor& q, const Tensor& k, const Tensor& v,
                                     const std::optional<Tensor>& gate) {
  const auto like = [](const Tensor& x) { return at::empty(x.sizes(), x.options()); };
  return {like(q), like(k), like(v), gate ? std::optional(like(*gate)) : std::nullopt};
}

Tensor screening_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s_w, const Tensor& s_r,
                     const ScreeningOptions& options) {
  return screening_cpu(q, k, v, s_w, s_r, options, SkippingControl());
}

std::pair<Tensor, Tensor> screening_backward_cpu(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                                                 const Tensor& s_w, const Tensor& s_r, const ScreeningOptions& options,
                                                 const ScreeningProjections& gradients, const Tensor& result) {
  return screening_backward_cpu(grad, q, k, v, s_w, s_r, options, gradients, result, SkippingControl());
}

// ---- screening_cpu_testing.h

Tensor screening_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s_w, const Tensor& s_r,
                     const ScreeningOptions& options, const SkippingControl& control) {
  return q.scalar_type() == at::kDouble ? forward<double>(q, k, v, s_w, s_r, options, control)
                                        : forward<float>(q, k, v, s_w, s_r, options, control);
}

std::pair<Tensor, Tensor> screening_backward_cpu(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                                                 const Tensor& s_w, const Tensor& s_r, const ScreeningOptions& options,
                                                 const ScreeningProjections& gradients, const Tensor& result,
                                                 const SkippingControl& control) {
  return q.scalar_type() == at::kDouble ? backward<double>(grad, q, k, v, s_w, s_r, options, gradients, result, control)
                                        : backward<float>(grad, q, k, v, s_w, s_r, options, gradients, result, control);
}

}  // namespace tamis::ops
