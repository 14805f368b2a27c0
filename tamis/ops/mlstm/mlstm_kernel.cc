// The mLSTM forward: chunk by chunk, README.md, Eq. (8)-(11).

#include "tamis/ops/mlstm/mlstm_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tamis/ops/mlstm/mlstm_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per instruction set:
#include "tamis/ops/mlstm/mlstm_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {
namespace {

struct ForwardMemory {
  float *q, *k, *v, *k_transposed, *weights, *numerator, *C;
  double *n, *n_dot_q;

  ForwardMemory(const MlstmHead& in, MlstmScratch& scratch) {
    const MlstmWidths width(in, in.value_dim);
    q = scratch.take(in.longest * width.key);
    k = scratch.take(in.longest * width.key);
    v = scratch.take(in.longest * width.value);
    k_transposed = scratch.take(whole_fours(in.key_dim) * width.tokens);
    weights = scratch.take(in.longest * width.tokens);
    numerator = scratch.take(in.longest * width.value);
    C = scratch.take(in.key_dim * width.value);
    n = scratch.take_doubles(width.key);
    n_dot_q = scratch.take_doubles(in.longest);
  }
};

void ForwardOfChunk(const MlstmForward& work, const MlstmChunk& chunk, const MlstmGates& gates, bool has_state,
                    const ForwardMemory& memory) {
  const MlstmHead& in = work.in;
  const MlstmWidths width(in, in.value_dim);
  const int64_t tokens = chunk.count;
  LoadRows<Next::kLater>(in.q, chunk, in.key_dim, width.key, memory.q);
  LoadRows<Next::kLater>(in.k, chunk, in.key_dim, width.key, memory.k);
  LoadRows<Next::kLater>(in.v, chunk, in.value_dim, width.value, memory.v);
  Transpose(memory.k, tokens, in.key_dim, width.key, memory.k_transposed, width.tokens);
  MultiplyToTriangle(tokens, in.key_dim, {memory.q, width.key, 1}, {memory.k_transposed, width.tokens},
                     {memory.weights, width.tokens});
  MakeWeights(gates, tokens, width.tokens, memory.weights, nullptr);
  MultiplyTriangle(tokens, width.value, memory.weights, width.tokens, {memory.v, width.value},
                   {memory.numerator, width.value});
  if (!has_state) std::fill_n(memory.n, width.key, 0.0);
  AdvanceNormaliser(gates, tokens, width.key, memory.q, memory.k, memory.n, memory.n_dot_q);
  if (has_state) {
    ScaleRows(gates.from_state, tokens, width.key, memory.q);
    Multiply<Sum::kAdd>(tokens, width.value, in.key_dim, {memory.q, width.key, 1}, {memory.C, width.value},
                        {memory.numerator, width.value});
  }
  for (int64_t t = 0; t < tokens; ++t) {
    float* row = memory.numerator + t * width.value;
    const auto n_dot_q = static_cast<float>(std::fabs(memory.n_dot_q[t]));
    const float denominator = std::max(n_dot_q, gates.least[t]) + static_cast<float>(kMlstmEpsilon);
    ScaleRow(1 / denominator, row, width.value);
    StoreRow(row, in.value_dim, work.h, chunk.first + t);
  }
  AdvanceState(in, gates, tokens, width, has_state ? memory.C : nullptr, memory.k, memory.v, memory.C);
}

void Forward(const MlstmForward& work) {
  const MlstmHead& in = work.in;
  const MlstmWidths width(in, in.value_dim);
  MlstmScratch scratch{work.scratch};
  const ForwardMemory memory(in, scratch);
  MlstmGates gates;
  bool has_state = in.start.C != nullptr;
  double m = has_state ? *in.start.m : 0;
  if (has_state) {
    LoadMatrix(in.start.C, in, width.value, memory.C);
    std::copy_n(in.start.n, in.key_dim, memory.n);
    std::fill(memory.n + in.key_dim, memory.n + width.key, 0.0);
  } else if (in.chunk_count == 0) {
    std::fill_n(memory.C, in.key_dim * width.value, 0.0f);
    std::fill_n(memory.n, width.key, 0.0);
  }
  for (int64_t c = 0; c < in.chunk_count; ++c) {
    const MlstmChunk& chunk = in.chunks[c];
    MakeGates(in, chunk, chunk.fresh ? 0 : m, gates);
    ForwardOfChunk(work, chunk, gates, has_state && !chunk.fresh, memory);
    has_state = true;
    m = gates.m_out;
  }
  StoreMatrix(memory.C, in, width.value, work.end.C);
  for (int64_t d = 0; d < in.key_dim; ++d) work.end.n[d] = static_cast<float>(memory.n[d]);
  *work.end.m = static_cast<float>(m);
}

int64_t ForwardScratch(const MlstmHead& in) {
  MlstmScratch count{nullptr};
  ForwardMemory(in, count);
  return count.used;
}

}  // namespace
}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tamis::kernels {

HWY_EXPORT(Forward);
HWY_EXPORT(ForwardScratch);

int64_t mlstm_forward_scratch(const MlstmHead& in) {
  return HWY_DYNAMIC_DISPATCH(ForwardScratch)(in);
}

void mlstm_forward(const MlstmForward& work) {
  HWY_DYNAMIC_DISPATCH(Forward)(work);
}

}  // namespace tamis::kernels
#endif
