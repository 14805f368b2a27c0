// Cuts screening into walks, one per sequence, head and stretch of queries, and runs them on ATen's threads. How it is
// cut depends on sizes alone, never on the number of threads, and every sum has a fixed order: same bits always.

#include "tamis/ops/screening/screening_cpu.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
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
};

/// The operator's arguments, readable by the kernels.
template <typename Real>
struct Problem {
  Problem(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const Tensor& s_w, const Tensor& s_r,
          const ScreeningOptions& options, bool derivative)
      : q(with_adjacent_rows(q_in)), k(with_adjacent_rows(k_in)), v(with_adjacent_rows(v_in)) {
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

  /// Stretches of all heads, the costliest first so that threads end together.
  template <typename Length>
  std::vector<Stretch> cut(const Length& length_for_span) const {
    std::vector<Stretch> stretches;
    for (int64_t h = 0; h < H; ++h) {
      const int64_t length = length_for_span(heads[h].constants.span);
      for (int64_t b = 0; b < B; ++b) {
        for (int64_t first = 0; first < T_q; first += length) {
          stretches.push_back({b, h, T_k - T_q + first, T_k - T_q + std::min(first + length, T_q)});
        }
      }
    }
    const auto cost = [&](const Stretch& s) { return (s.last - s.first) * (heads[s.head].constants.span + 64); };
    std::stable_sort(stretches.begin(), stretches.end(),
                     [&](const Stretch& a, const Stretch& b) { return cost(a) > cost(b); });
    return stretches;
  }

  /// A walk over `stretch` with a ring of its own in `memory`.
  kernels::ScreeningWalk<Real> walk(const Stretch& stretch, int64_t block, WalkMemory<Real>& memory) const {
    kernels::ScreeningWalk<Real> walk;
    walk.head = heads[stretch.head].constants;
    walk.q = rows_of(q, stretch.batch, stretch.head);
    walk.k = rows_of(k, stretch.batch, stretch.head);
    walk.v = rows_of(v, stretch.batch, stretch.head);
    if (gate.defined()) walk.gate = rows_of(gate, stretch.batch, stretch.head);
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
    // The first tile may begin before the first key that is packed.
    const int64_t slot = walk.packed % walk.ring.capacity / kernels::kTileKeys * kernels::kTileKeys;
    std::fill_n(walk.ring.tiles + slot * K, kernels::kTileKeys * K, Real{0});
    return walk;
  }

  Tensor q, k, v, gate;
  int64_t B, T_q, T_k, H, K, V;
  std::vector<PreparedHead<Real>> heads;
  std::vector<Real> documents;  // [B, T_k] or empty
};

template <typename Real>
WalkMemory<Real>& thread_memory() {
  thread_local WalkMemory<Real> memory;
  memory.reset();
  return memory;
}

int64_t block_for_span(int64_t span) {
  return span <= 64 ? 16 : kernels::kBlockQueries;
}

template <typename Real>
Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s_w, const Tensor& s_r,
               const ScreeningOptions& options) {
  const Problem<Real> problem(q, k, v, s_w, s_r, options, /*derivative=*/false);
  Tensor out = at::empty({problem.B, problem.T_q, problem.H, problem.V}, v.options());
  // Each stretch packs the span - 1 keys before it anew: long enough for that to be little.
  const auto stretches = problem.cut(
      [&](int64_t span) { return std::clamp<int64_t>(2 * span, 512, std::max<int64_t>(1024, problem.T_k / 4)); });
  parallel_items(static_cast<int64_t>(stretches.size()), [&](int64_t item) {
    const Stretch& stretch = stretches[item];
    WalkMemory<Real>& memory = thread_memory<Real>();
    auto walk = problem.walk(stretch, block_for_span(problem.heads[stretch.head].constants.span), memory);
    walk.out = rows_of(out, stretch.batch, stretch.head);
    walk.scratch = memory.take(kernels::forward_scratch(problem.K, problem.V));
    kernels::screening_forward(walk);
  });
  return out;
}

/// Keys shared by two neighbouring stretches: what each contributes to their gradients.
template <typename Real>
struct Boundary {
  std::vector<Real> tail, halo;  // [span - 1][padded(K) + padded(V)]
};

template <typename Real>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> backward(const Tensor& grad_in, const Tensor& q,
                                                                    const Tensor& k, const Tensor& v, const Tensor& s_w,
                                                                    const Tensor& s_r,
                                                                    const ScreeningOptions& options) {
  const Problem<Real> problem(q, k, v, s_w, s_r, options, /*derivative=*/true);
  const Tensor grad = with_adjacent_rows(grad_in);
  const int64_t K = problem.K, V = problem.V, sums_width = padded(K) + padded(V);
  Tensor dq = at::empty(q.sizes(), q.options());
  Tensor dk = problem.T_q > 0 ? at::empty(k.sizes(), k.options()) : at::zeros(k.sizes(), k.options());
  Tensor dv = problem.T_q > 0 ? at::empty(v.sizes(), v.options()) : at::zeros(v.sizes(), v.options());
  Tensor dgate = options.gate ? at::empty(options.gate->sizes(), options.gate->options()) : at::empty({0}, q.options());

  // A stretch shares its last span - 1 keys with the next one only: it must be that long.
  const auto length = [](int64_t span) { return std::max<int64_t>(1024, 4 * span); };
  const auto stretches = problem.cut(length);
  const int64_t per_head = (problem.T_q + 1023) / 1024;
  std::vector<Boundary<Real>> boundaries(static_cast<size_t>(problem.B * problem.H * per_head));
  struct Sums {
    double softmask = 0, mipe_step = 0, accept = 0;
  };
  std::vector<Sums> sums(boundaries.size());
  const auto index_of = [&](const Stretch& s) {
    const int64_t part = (s.first - (problem.T_k - problem.T_q)) / length(problem.heads[s.head].constants.span);
    return (s.batch * problem.H + s.head) * per_head + part;
  };
  const auto is_last = [&](const Stretch& s) { return s.last == problem.T_k; };
  for (const Stretch& s : stretches) {
    if (is_last(s)) continue;
    auto& boundary = boundaries[index_of(s)];
    boundary.tail.resize((problem.heads[s.head].constants.span - 1) * sums_width);
    boundary.halo.resize(boundary.tail.size());
  }
  const auto bind = [&](const Stretch& stretch, kernels::ScreeningBackward<Real>& work) {
    work.walk.out = rows_of(grad, stretch.batch, stretch.head);
    work.dq = rows_of(dq, stretch.batch, stretch.head);
    work.dk = rows_of(dk, stretch.batch, stretch.head);
    work.dv = rows_of(dv, stretch.batch, stretch.head);
    if (options.gate) work.dgate = rows_of(dgate, stretch.batch, stretch.head);
  };

  parallel_items(static_cast<int64_t>(stretches.size()), [&](int64_t item) {
    const Stretch& stretch = stretches[item];
    const int64_t span = problem.heads[stretch.head].constants.span;
    // The accepted pairs of a block are remembered: short blocks where a query may accept many keys.
    const int64_t block = span <= 64 ? 16 : span <= 1024 ? kernels::kBlockQueries : 8;
    WalkMemory<Real>& memory = thread_memory<Real>();
    kernels::ScreeningBackward<Real> work;
    work.walk = problem.walk(stretch, block, memory);
    bind(stretch, work);
    const int64_t capacity = work.walk.ring.capacity;
    work.walk.ring.rows = memory.take(capacity * padded(K));
    work.walk.scratch = memory.take(kernels::backward_scratch(K, V));
    work.sums = memory.take(capacity * sums_width);
    std::fill_n(work.sums, capacity * sums_width, Real{0});
    work.accepted_shortfall = memory.take(block * kernels::accepted_capacity(span));
    work.accepted_key = memory.template take<int32_t>(block * kernels::accepted_capacity(span));
    const int64_t index = index_of(stretch);
    if (stretch.first > problem.T_k - problem.T_q) {
      work.halo = boundaries[index - 1].halo.data();
    } else if (work.walk.packed > 0) {
      // Keys that no query can see.
      dk.select(0, stretch.batch).select(1, stretch.head).slice(0, 0, work.walk.packed).zero_();
      dv.select(0, stretch.batch).select(1, stretch.head).slice(0, 0, work.walk.packed).zero_();
    }
    if (!is_last(stretch)) work.tail = boundaries[index].tail.data();
    kernels::screening_backward(work);
    sums[index] = {work.d_softmask, work.d_mipe_step, work.d_accept};
  });

  parallel_items(static_cast<int64_t>(stretches.size()), [&](int64_t item) {
    const Stretch& stretch = stretches[item];
    if (is_last(stretch)) return;
    WalkMemory<Real>& memory = thread_memory<Real>();
    kernels::ScreeningBackward<Real> work;
    work.walk = problem.walk(stretch, kernels::kBlockQueries, memory);
    bind(stretch, work);
    work.walk.scratch = memory.take(kernels::backward_scratch(K, V));
    const auto& boundary = boundaries[index_of(stretch)];
    kernels::finish_keys(work, stretch.last, boundary.tail.data(), boundary.halo.data());
  });

  Tensor ds_w = at::zeros({problem.H}, s_w.options().dtype(at::kDouble));
  Tensor ds_r = at::zeros({problem.H}, s_r.options().dtype(at::kDouble));
  for (int64_t h = 0; h < problem.H; ++h) {
    Sums total;
    for (int64_t b = 0; b < problem.B; ++b) {
      for (int64_t part = 0; part < per_head; ++part) {
        const Sums& one = sums[(b * problem.H + h) * per_head + part];
        total.softmask += one.softmask;
        total.mipe_step += one.mipe_step;
        total.accept += one.accept;
      }
    }
    ds_w.mutable_data_ptr<double>()[h] = total.softmask + total.mipe_step * problem.heads[h].mipe_step_slope;
    ds_r.mutable_data_ptr<double>()[h] = total.accept;
  }
  return {dq, dk, dv, ds_w.to(s_w.scalar_type()), ds_r.to(s_r.scalar_type()), dgate};
}

}  // namespace

Tensor screening_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& s_w, const Tensor& s_r,
                     const ScreeningOptions& options) {
  return q.scalar_type() == at::kDouble ? forward<double>(q, k, v, s_w, s_r, options)
                                        : forward<float>(q, k, v, s_w, s_r, options);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> screening_backward_cpu(const Tensor& grad, const Tensor& q,
                                                                                  const Tensor& k, const Tensor& v,
                                                                                  const Tensor& s_w, const Tensor& s_r,
                                                                                  const ScreeningOptions& options) {
  return q.scalar_type() == at::kDouble ? backward<double>(grad, q, k, v, s_w, s_r, options)
                                        : backward<float>(grad, q, k, v, s_w, s_r, options);
}

}  // namespace tamis::ops
