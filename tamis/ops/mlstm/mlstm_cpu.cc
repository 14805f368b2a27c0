#include "tamis/ops/mlstm/mlstm_cpu.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "tamis/ops/parallel.h"
#include "tamis/ops/rows.h"
#include "tamis/ops/scratch.h"

namespace tamis::ops {
namespace {

using at::Tensor;

/// The chunks of a sequence: none crosses the beginning of a document. document null: one document.
std::vector<kernels::MlstmChunk> cut(int64_t tokens, int64_t chunk, const int64_t* document) {
  std::vector<kernels::MlstmChunk> chunks;
  const auto begins = [&](int64_t t) { return document != nullptr && t > 0 && document[t] != document[t - 1]; };
  for (int64_t first = 0; first < tokens;) {
    int64_t last = first + 1;
    while (last < std::min(first + chunk, tokens) && !begins(last)) ++last;
    chunks.push_back({first, last - first, begins(first)});
    first = last;
  }
  return chunks;
}

Tensor float_contiguous(const Tensor& x) {
  return x.to(at::kFloat).contiguous();
}

MlstmState map(const MlstmState& state, Tensor (*function)(const Tensor&)) {
  return {function(state.C_BHKV), function(state.n_BHK), function(state.m_BH)};
}

Tensor empty_as(const Tensor& x) {
  return at::empty(x.sizes(), x.options());
}

/// A [B, T, H] tensor of float32 as the kernels read it.
kernels::Series series_of(const Tensor& x_BTH, int64_t batch, int64_t head) {
  return {x_BTH.mutable_data_ptr<float>() + batch * x_BTH.stride(0) + head * x_BTH.stride(2), x_BTH.stride(1)};
}

/// What both passes read, and the loop over sequences and heads.
class MlstmProblem {
 public:
  MlstmProblem(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& i, const Tensor& f,
               const MlstmOptions& options)
      : B(q.size(0)),
        T(q.size(1)),
        H(q.size(2)),
        K(q.size(3)),
        V(v.size(3)),
        q_(with_adjacent_rows(q)),
        k_(with_adjacent_rows(k)),
        v_(with_adjacent_rows(v)),
        i_(i.to(at::kFloat)),
        f_(f.to(at::kFloat)) {
    if (options.state) start = map(*options.state, &float_contiguous);
    const Tensor document = options.document ? options.document->to(at::kLong).contiguous() : Tensor();
    const int64_t chunk = std::min(options.chunk, kernels::kMlstmMostTokens);
    for (int64_t b = 0; b < B; ++b) {
      chunks_.push_back(cut(T, chunk, document.defined() ? document.const_data_ptr<int64_t>() + b * T : nullptr));
    }
  }

  int64_t B, T, H, K, V;
  std::optional<MlstmState> start;

  kernels::MlstmHead head(int64_t batch, int64_t head) const {
    const std::vector<kernels::MlstmChunk>& chunks = chunks_[batch];
    int64_t longest = 0, continued = 0;
    for (const kernels::MlstmChunk& chunk : chunks) {
      longest = std::max(longest, chunk.count);
      continued += chunk.fresh ? 0 : 1;
    }
    return {.key_dim = K,
            .value_dim = V,
            .chunks = chunks.data(),
            .chunk_count = static_cast<int64_t>(chunks.size()),
            .tokens = T,
            .longest = longest,
            .continued = continued,
            .q = rows_of(q_, batch, head),
            .k = rows_of(k_, batch, head),
            .v = rows_of(v_, batch, head),
            .i = series_of(i_, batch, head),
            .f = series_of(f_, batch, head),
            .start = start ? state_of(*start, batch, head) : kernels::MlstmHeadState{}};
  }

  kernels::MlstmHeadState state_of(const MlstmState& state, int64_t batch, int64_t head) const {
    const int64_t at = batch * H + head;
    return {state.C_BHKV.mutable_data_ptr<float>() + at * K * V, state.n_BHK.mutable_data_ptr<float>() + at * K,
            state.m_BH.mutable_data_ptr<float>() + at};
  }

  /// Calls work(batch, head, memory) for every head of every sequence, on ATen's threads if that is faster.
  template <typename Work>
  void for_each_head(const Work& work) const {
    constexpr int64_t kWorthThreads = 1 << 18;  // multiply-adds with the state, some ten microseconds
    const auto one = [&](int64_t item) { work(item / H, item % H, thread_memory<float>()); };
    if (B * H * T * K * V >= kWorthThreads) return parallel_items(B * H, one);
    serial_items(B * H, one);
  }

 private:
  Tensor q_, k_, v_, i_, f_;  // rows adjacent
  std::vector<std::vector<kernels::MlstmChunk>> chunks_;
};

/// Gradients of the state after the last token; empty if none is given.
std::optional<MlstmState> state_gradients(const MlstmOutputGradients& grad, const MlstmProblem& problem,
                                          const at::TensorOptions& options) {
  if (!grad.C && !grad.n && !grad.m) return std::nullopt;
  const auto given_or_zeros = [&](const std::optional<Tensor>& x, at::IntArrayRef shape) {
    return x ? float_contiguous(*x) : at::zeros(shape, options);
  };
  return MlstmState{given_or_zeros(grad.C, {problem.B, problem.H, problem.K, problem.V}),
                    given_or_zeros(grad.n, {problem.B, problem.H, problem.K}),
                    given_or_zeros(grad.m, {problem.B, problem.H})};
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> mlstm_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& i,
                                                     const Tensor& f, const MlstmOptions& options) {
  const MlstmProblem problem(q, k, v, i, f, options);
  const auto floats = q.options().dtype(at::kFloat);
  const Tensor h = empty_as(v);
  const MlstmState end{at::empty({problem.B, problem.H, problem.K, problem.V}, floats),
                       at::empty({problem.B, problem.H, problem.K}, floats), at::empty({problem.B, problem.H}, floats)};
  problem.for_each_head([&](int64_t batch, int64_t head, ScratchMemory<float>& memory) {
    const kernels::MlstmHead in = problem.head(batch, head);
    kernels::mlstm_forward({.in = in,
                            .h = rows_of(h, batch, head),
                            .end = problem.state_of(end, batch, head),
                            .scratch = memory.take(kernels::mlstm_forward_scratch(in))});
  });
  return {h, end.C_BHKV, end.n_BHK, end.m_BH};
}

void mlstm_token(const MlstmToken& token) {
  const kernels::MlstmChunk chunk{.first = 0, .count = 1, .fresh = false};
  const auto row = [](float* numbers, int64_t dim) { return kernels::Rows{numbers, dim, kernels::Storage::kFloat32}; };
  float i = token.i, f = token.f;
  const kernels::MlstmHeadState state{token.C, token.n, token.m};
  const kernels::MlstmHead in{.key_dim = token.key_dim,
                              .value_dim = token.value_dim,
                              .chunks = &chunk,
                              .chunk_count = 1,
                              .tokens = 1,
                              .longest = 1,
                              .continued = 1,
                              .q = row(token.q, token.key_dim),
                              .k = row(token.k, token.key_dim),
                              .v = row(token.v, token.value_dim),
                              .i = {&i, 1},
                              .f = {&f, 1},
                              .start = state};
  kernels::mlstm_forward({.in = in,
                          .h = row(token.h, token.value_dim),
                          .end = state,  // written when everything has been read
                          .scratch = thread_memory<float>().take(kernels::mlstm_forward_scratch(in))});
}

std::array<Tensor, 8> mlstm_backward_cpu(const MlstmOutputGradients& grad, const Tensor& q, const Tensor& k,
                                         const Tensor& v, const Tensor& i, const Tensor& f,
                                         const MlstmOptions& options) {
  const MlstmProblem problem(q, k, v, i, f, options);
  const auto floats = q.options().dtype(at::kFloat);
  const Tensor dh = grad.h ? with_adjacent_rows(*grad.h) : at::zeros(v.sizes(), v.options());
  const std::optional<MlstmState> d_end = state_gradients(grad, problem, floats);
  const Tensor dq = empty_as(q), dk = empty_as(k), dv = empty_as(v);
  const Tensor di = at::empty(i.sizes(), floats), df = at::empty(f.sizes(), floats);
  std::optional<MlstmState> d_start;
  if (problem.start) d_start = map(*problem.start, &empty_as);
  problem.for_each_head([&](int64_t batch, int64_t head, ScratchMemory<float>& memory) {
    const kernels::MlstmHead in = problem.head(batch, head);
    kernels::mlstm_backward({.in = in,
                             .dh = rows_of(dh, batch, head),
                             .d_end = d_end ? problem.state_of(*d_end, batch, head) : kernels::MlstmHeadState{},
                             .dq = rows_of(dq, batch, head),
                             .dk = rows_of(dk, batch, head),
                             .dv = rows_of(dv, batch, head),
                             .di = series_of(di, batch, head),
                             .df = series_of(df, batch, head),
                             .d_start = d_start ? problem.state_of(*d_start, batch, head) : kernels::MlstmHeadState{},
                             .scratch = memory.take(kernels::mlstm_backward_scratch(in))});
  });
  const Tensor none = at::empty({0}, floats);
  return {dq,
          dk,
          dv,
          di.to(i.scalar_type()),
          df.to(f.scalar_type()),
          d_start ? d_start->C_BHKV : none,
          d_start ? d_start->n_BHK : none,
          d_start ? d_start->m_BH : none};
}

}  // namespace tamis::ops
