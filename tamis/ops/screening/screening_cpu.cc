// Cuts screening into stretches of queries of a head and walks them on ATen's threads. How it is cut depends
// on sizes alone, never on the number of threads, and every sum has a fixed order: same bits always.

#include "tamis/ops/screening/screening_cpu.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "tamis/ops/parallel.h"
#include "tamis/ops/screening/screening_heads.h"
#include "tamis/ops/screening/screening_kernel.h"

namespace tamis::ops {
namespace {

using at::Tensor;
using kernels::padded;

/// Queries [first, last) of one sequence and head.
struct Stretch {
  int64_t batch, head, first, last;
  int64_t part;  // stretches of the sequence and head before this one
};

constexpr int64_t kWideSpan = 1024;  // a head that sees more keys than this is wide

/// The operator's arguments, readable by the kernels.
template <typename Real>
struct Problem {
  Problem(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const Tensor& s_w, const Tensor& s_r,
          const ScreeningOptions& options, const Bounds& how, bool derivative)
      : q(with_adjacent_rows(q_in)), k(with_adjacent_rows(k_in)), v(with_adjacent_rows(v_in)), bounds(how) {
    if (options.gate) gate = with_adjacent_rows(*options.gate);
    B = q.size(0), T_q = q.size(1), H = q.size(2), K = q.size(3), T_k = k.size(1), V = v.size(3);
    const Tensor width = s_w.detach().to(at::kDouble).contiguous(), accept = s_r.detach().to(at::kDouble).contiguous();
    for (int64_t h = 0; h < H; ++h) {
      heads.push_back(prepare_head<Real>(width.const_data_ptr<double>()[h], accept.const_data_ptr<double>()[h], K, V,
                                         T_k, options.mipe_threshold, options.expand_beyond, options.position == "mipe",
                                         options.tanh_norm, derivative));
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

  /// Cuts the queries of every head. A stretch packs the span - 1 keys before it anew, so it is several spans long;
  /// that of a wide head is at most `most_for_wide`. Narrow heads are all cut alike. Lengths are rounded up to
  /// whole tiles, which are packed faster.
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
          stretches.push_back({b, h, T_k - T_q + first, T_k - T_q + last, part});
          most_parts = std::max(most_parts, part + 1);
        }
      }
    }
    skipped.resize(stretches.size());
    // Wide heads first, so that threads end together; then in the order of memory.
    std::stable_sort(stretches.begin(), stretches.end(), [&](const Stretch& x, const Stretch& y) {
      return std::tuple(!is_wide(heads[x.head]), x.batch, x.first) <
             std::tuple(!is_wide(heads[y.head]), y.batch, y.first);
    });
  }

  static bool is_wide(const PreparedHead<Real>& head) { return head.constants.span > kWideSpan; }

  /// A walk over `stretch` with a ring of its own in `memory`.
  kernels::ScreeningWalk<Real> walk(const Stretch& stretch, int64_t block, ScratchMemory<Real>& memory) {
    const int64_t h = stretch.head;
    kernels::ScreeningWalk<Real> walk;
    walk.head = heads[h].constants;
    walk.q = rows_of(q, stretch.batch, h);
    walk.k = rows_of(k, stretch.batch, h);
    walk.v = rows_of(v, stretch.batch, h);
    if (gate.defined()) walk.gate = rows_of(gate, stretch.batch, h);
    walk.query_origin = T_k - T_q;
    walk.first = stretch.first;
    walk.last = stretch.last;
    walk.block = block;
    walk.packed = std::max<int64_t>(0, stretch.first - walk.head.span + 1);
    if (!documents.empty()) walk.document = documents.data() + stretch.batch * T_k;
    walk.ring.capacity = kernels::ring_capacity(walk.head.span, block);
    walk.ring.tiles = memory.take(walk.ring.capacity * K);
    walk.ring.values = memory.take(walk.ring.capacity * padded(V));
    walk.ring.ready = memory.template take<uint8_t>(walk.ring.capacity);
    if (bounds.skipped != nullptr) walk.skipped = &skipped[&stretch - stretches.data()];
    const bool keeps_every_key = walk.head.span == T_k;
    if (keeps_every_key && stretch.last >= kernels::kSmallestChunk && bounds.skipping != kernels::Skipping::kNever) {
      walk.index = take_index<Real>(stretch.last, K, bounds.skipping, memory);
    }
    // The first tile may begin before the first key that is packed.
    const int64_t slot = walk.packed % walk.ring.capacity / kernels::kTileKeys * kernels::kTileKeys;
    std::fill_n(walk.ring.tiles + slot * K, kernels::kTileKeys * K, Real{0});
    return walk;
  }

  /// Adds up what the walks counted.
  void report() const {
    if (bounds.skipped == nullptr) return;
    for (const kernels::SkippedWork& one : skipped) {
      bounds.skipped->visible += one.visible;
      bounds.skipped->similarities += one.similarities;
      bounds.skipped->bounds += one.bounds;
      bounds.skipped->dense += one.dense;
    }
  }

  Tensor q, k, v, gate;
  Bounds bounds;
  std::vector<kernels::SkippedWork> skipped;  // of each stretch
  int64_t B, T_q, T_k, H, K, V;
  std::vector<PreparedHead<Real>> heads;
  std::vector<Real> documents;  // [B, T_k] or empty
  std::vector<Stretch> stretches;
  int64_t most_parts = 0;
};

template <typename Real>
Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s_w, const Tensor& s_r,
               const ScreeningOptions& options, const Bounds& bounds) {
  Problem<Real> problem(q, k, v, s_w, s_r, options, bounds, /*derivative=*/false);
  problem.cut(std::max<int64_t>(1024, problem.T_k / 4));
  Tensor out = at::empty({problem.B, problem.T_q, problem.H, problem.V}, v.options());
  parallel_items(static_cast<int64_t>(problem.stretches.size()), [&](int64_t item) {
    const Stretch& stretch = problem.stretches[item];
    ScratchMemory<Real>& memory = thread_memory<Real>();
    auto walk = problem.walk(stretch, block_for_span(problem.heads[stretch.head].constants.span), memory);
    walk.out = rows_of(out, stretch.batch, stretch.head);
    walk.scratch = memory.take(kernels::forward_scratch(problem.K, problem.V));
    kernels::screening_forward(walk);
  });
  problem.report();
  return out;
}

/// A stretch's gradients of its head's scalars.
struct Sums {
  double softmask = 0, mipe_step = 0, accept = 0;
};

/// Keys shared by two neighbouring stretches: what each contributes to their gradients.
template <typename Real>
struct Boundary {
  std::vector<Real> tail, halo;  // [span - 1][padded(K) + padded(V)]
};

template <typename Real>
std::pair<Tensor, Tensor> backward(const Tensor& grad_in, const Tensor& q, const Tensor& k, const Tensor& v,
                                   const Tensor& s_w, const Tensor& s_r, const ScreeningOptions& options,
                                   const ScreeningProjections& gradients, const Tensor& result, const Bounds& bounds) {
  Problem<Real> problem(q, k, v, s_w, s_r, options, bounds, /*derivative=*/true);
  // A stretch shares its last span - 1 keys with the next one only: a wide head is not cut shorter than 2 spans.
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

  // Per sequence, head and part: what its gradients of s_w and s_r are, and what it shares with the next part.
  std::vector<Sums> sums(static_cast<size_t>(problem.B * problem.H * problem.most_parts));
  std::vector<Boundary<Real>> boundaries(sums.size());
  const auto index_of = [&](const Stretch& s) { return (s.batch * problem.H + s.head) * problem.most_parts + s.part; };
  const auto is_last = [&](const Stretch& s) { return s.last == problem.T_k; };
  for (const Stretch& s : problem.stretches) {
    if (is_last(s)) continue;
    auto& boundary = boundaries[index_of(s)];
    boundary.tail.resize((problem.heads[s.head].constants.span - 1) * sums_width);
    boundary.halo.resize(boundary.tail.size());
  }
  const auto work_of = [&](const Stretch& stretch, int64_t block, ScratchMemory<Real>& memory) {
    const int64_t h = stretch.head;
    kernels::ScreeningBackward<Real> work;
    work.walk = problem.walk(stretch, block, memory);
    work.walk.out = rows_of(grad, stretch.batch, h);
    if (result.defined()) work.result = rows_of(result, stretch.batch, h);
    work.dq = rows_of(dq, stretch.batch, h);
    work.dk = rows_of(dk, stretch.batch, h);
    work.dv = rows_of(dv, stretch.batch, h);
    if (options.gate) work.dgate = rows_of(*dgate, stretch.batch, h);
    return work;
  };

  parallel_items(static_cast<int64_t>(problem.stretches.size()), [&](int64_t item) {
    const Stretch& stretch = problem.stretches[item];
    ScratchMemory<Real>& memory = thread_memory<Real>();
    const int64_t span = problem.heads[stretch.head].constants.span;
    const int64_t block = block_for_span(span);
    auto work = work_of(stretch, block, memory);
    const int64_t capacity = work.walk.ring.capacity;
    work.walk.ring.rows = memory.take(capacity * padded(K));
    work.walk.ring.key_norm = memory.template take<double>(capacity);
    work.walk.ring.value_norm = memory.template take<double>(capacity);
    work.walk.scratch = memory.take(kernels::backward_scratch(K, V));
    work.sums = memory.take(capacity * sums_width);
    std::fill_n(work.sums, capacity * sums_width, Real{0});
    work.accepted_shortfall = memory.take(block * kernels::accepted_capacity(span));
    work.accepted_key = memory.template take<int32_t>(block * kernels::accepted_capacity(span));
    work.panels = memory.template take<kernels::PanelTally>(kernels::panel_capacity(span));
    if (stretch.part > 0) {
      work.halo = boundaries[index_of(stretch) - 1].halo.data();
    } else if (work.walk.packed > 0) {
      // Keys that no query can see.
      dk.select(0, stretch.batch).select(1, stretch.head).slice(0, 0, work.walk.packed).zero_();
      dv.select(0, stretch.batch).select(1, stretch.head).slice(0, 0, work.walk.packed).zero_();
    }
    if (!is_last(stretch)) work.tail = boundaries[index_of(stretch)].tail.data();
    kernels::screening_backward(work);
    sums[index_of(stretch)] = {work.d_softmask, work.d_mipe_step, work.d_accept};
  });
  problem.report();

  parallel_items(static_cast<int64_t>(problem.stretches.size()), [&](int64_t item) {
    const Stretch& stretch = problem.stretches[item];
    if (is_last(stretch)) return;
    ScratchMemory<Real>& memory = thread_memory<Real>();
    auto work = work_of(stretch, kernels::kBlockQueries, memory);
    work.walk.scratch = memory.take(kernels::backward_scratch(K, V));
    const auto& boundary = boundaries[index_of(stretch)];
    kernels::finish_keys(work, stretch.last, boundary.tail.data(), boundary.halo.data());
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
                     const ScreeningOptions& options, const Bounds& bounds) {
  return q.scalar_type() == at::kDouble ? forward<double>(q, k, v, s_w, s_r, options, bounds)
                                        : forward<float>(q, k, v, s_w, s_r, options, bounds);
}

std::pair<Tensor, Tensor> screening_backward_cpu(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                                                 const Tensor& s_w, const Tensor& s_r, const ScreeningOptions& options,
                                                 const ScreeningProjections& gradients, const Tensor& result,
                                                 const Bounds& bounds) {
  return q.scalar_type() == at::kDouble ? backward<double>(grad, q, k, v, s_w, s_r, options, gradients, result, bounds)
                                        : backward<float>(grad, q, k, v, s_w, s_r, options, gradients, result, bounds);
}

}  // namespace tamis::ops
