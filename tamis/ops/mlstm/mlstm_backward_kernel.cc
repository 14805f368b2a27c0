// The backward pass of the mLSTM: the states before every chunk are computed again, then the chunks are processed from
// the last to the first. The derivation is in README.md.

#include "tamis/ops/mlstm/mlstm_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tamis/ops/mlstm/mlstm_backward_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per instruction set:
#include "tamis/ops/mlstm/mlstm_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {
namespace {

/// Values have an additional column of ones, so that column V of C is n, and that of d_numerator the gradient of n . q.
HWY_INLINE MlstmWidths WidthsWithN(const MlstmHead& in) {
  return MlstmWidths(in, in.value_dim + 1);
}

template <Next kNext>
HWY_INLINE void LoadValues(const MlstmHead& in, const MlstmChunk& chunk, int64_t width, float* v) {
  LoadRows<kNext>(in.v, chunk, in.value_dim, width, v);
  for (int64_t t = 0; t < chunk.count; ++t) v[t * width + in.value_dim] = 1;
}

HWY_INLINE void LoadState(const MlstmHeadState& in, const MlstmHead& head, int64_t width, float* state) {
  LoadMatrix(in.C, head, width, state);
  for (int64_t d = 0; d < head.key_dim; ++d) state[d * width + head.value_dim] = in.n[d];
}

HWY_INLINE void StoreState(const float* state, const MlstmHead& head, int64_t width, const MlstmHeadState& out) {
  StoreMatrix(state, head, width, out.C);
  for (int64_t d = 0; d < head.key_dim; ++d) out.n[d] = state[d * width + head.value_dim];
}

struct BackwardMemory {
  float *q, *k, *v, *k_transposed, *v_transposed;
  float *weights, *D, *d_weights;  // [tokens][tokens]
  float* d_numerator;              // with d(n . q) in the column V
  float *dq, *dk, *dv, *through_state;
  float *state_transposed, *d_state;
  float* states;    // before every chunk that continues, and the last one of all
  double *m, *n;    // m before every chunk and after the last; the current n
  double* n_dot_q;  // of every token

  BackwardMemory(const MlstmHead& in, MlstmScratch& scratch) {
    const MlstmWidths width = WidthsWithN(in);
    const auto of_tokens = [&](int64_t columns) { return scratch.take(in.longest * columns); };
    q = of_tokens(width.key);
    k = of_tokens(width.key);
    v = of_tokens(width.value);
    k_transposed = scratch.take(whole_fours(in.key_dim) * width.tokens);
    v_transposed = scratch.take(whole_fours(in.value_dim) * width.tokens);
    weights = of_tokens(width.tokens);
    D = of_tokens(width.tokens);
    d_weights = of_tokens(width.tokens);
    d_numerator = of_tokens(width.value);
    dq = of_tokens(width.key);
    dk = of_tokens(width.key);
    dv = of_tokens(width.value);
    through_state = of_tokens(width.key);
    state_transposed = scratch.take(whole_fours(in.value_dim + 1) * width.key);
    d_state = scratch.take(in.key_dim * width.value);
    states = scratch.take((in.continued + 1) * in.key_dim * width.value);
    m = scratch.take_doubles(in.chunk_count + 1);
    n = scratch.take_doubles(width.key);
    n_dot_q = scratch.take_doubles(in.tokens);
  }
};

/// Gradients of a chunk's weights that go to the gates, and what follows from the denominators.
struct TokenGradients {
  HWY_ALIGN float inverse[kMlstmMostTokens];  // 1 / denominator
  HWY_ALIGN float sign[kMlstmMostTokens];     // of n . q where it is the denominator, else 0
  double h_dot_dh[kMlstmMostTokens];
  double row[kMlstmMostTokens];     // of weights from the state: W_t dW_t
  double column[kMlstmMostTokens];  // of weights to the state: E_s dE_s
  double across[kMlstmMostTokens];  // sum over s < r <= t of P_ts dP_ts
  double di[kMlstmMostTokens], d_log_f[kMlstmMostTokens];
};

/// (12): dh -> d_numerator.
void DivideByDenominators(const MlstmBackward& work, const MlstmChunk& chunk, const MlstmGates& gates,
                          const BackwardMemory& memory, TokenGradients& tokens) {
  const MlstmWidths width = WidthsWithN(work.in);
  const double* n_dot_q = memory.n_dot_q + chunk.first;
  LoadRows<Next::kEarlier>(work.dh, chunk, work.in.value_dim, width.value, memory.d_numerator);
  for (int64_t t = 0; t < chunk.count; ++t) {
    const auto size = static_cast<float>(std::fabs(n_dot_q[t]));
    tokens.sign[t] = size <= gates.least[t] ? 0.0f : n_dot_q[t] < 0 ? -1.0f : 1.0f;
    tokens.inverse[t] = 1 / (std::max(size, gates.least[t]) + static_cast<float>(kMlstmEpsilon));
  }
  ScaleRows(tokens.inverse, chunk.count, width.value, memory.d_numerator);
}

/// (13), (14): the denominator's part of d_numerator (column V) and of d_weights, whose triangle is
/// d_numerator . v before; then d_weights -> gradients of scores, and sums of P dP for the gates.
void ScoreGradients(const MlstmHead& in, const MlstmGates& gates, int64_t count, const float* n,
                    const BackwardMemory& memory, TokenGradients& tokens) {
  const LaneTag<float> d;
  constexpr int64_t kWidth = hn::MaxLanes(LaneTag<float>());
  const hn::RebindToSigned<LaneTag<float>> integers;
  const MlstmWidths width = WidthsWithN(in);
  HWY_ALIGN float later[kMlstmMostTokens] = {};  // sum over t >= r of P_ts dP_ts, for every s
  for (int64_t t = count - 1; t >= 0; --t) {
    const float* P = memory.weights + t * width.tokens;
    const float* D = memory.D + t * width.tokens;
    float* dP = memory.d_weights + t * width.tokens;
    float* through_state = memory.through_state + t * width.key;
    const float* q = memory.q + t * width.key;
    auto products = hn::Zero(d);
    for (int64_t s = 0; s <= t; s += kWidth) {
      products = hn::MulAdd(hn::LoadU(d, P + s), hn::LoadU(d, dP + s), products);
    }
    float h_dot_dh = hn::GetLane(hn::SumOfLanes(d, products));
    if (n != nullptr) h_dot_dh += gates.from_state[t] * Dot(q, through_state, width.key);
    const float d_n_dot_q = -tokens.sign[t] * h_dot_dh * tokens.inverse[t];
    memory.d_numerator[t * width.value + in.value_dim] = d_n_dot_q;
    tokens.h_dot_dh[t] = h_dot_dh;
    tokens.row[t] = 0;
    if (n != nullptr) {
      AddScaled(d_n_dot_q, n, through_state, width.key);
      tokens.row[t] = gates.from_state[t] * Dot(q, through_state, width.key);
    }
    const auto add = hn::Set(d, d_n_dot_q);
    const auto own = hn::Set(integers, static_cast<int32_t>(t));
    auto before = hn::Zero(d);
    int64_t s = 0;
    for (; s <= t; s += kWidth) {
      const auto gradient = hn::Add(hn::LoadU(d, dP + s), add);
      const auto sum = hn::MulAdd(hn::LoadU(d, P + s), gradient, hn::Load(d, later + s));
      hn::Store(sum, d, later + s);
      const auto older = hn::RebindMask(d, hn::Lt(hn::Iota(integers, static_cast<int32_t>(s)), own));
      before = hn::Add(before, hn::IfThenElseZero(older, sum));
      hn::StoreU(hn::Mul(hn::LoadU(d, D + s), gradient), d, dP + s);  // D is 0 beyond the triangle
    }
    std::fill(dP + s, dP + padded(count), 0.0f);
    tokens.across[t] = hn::GetLane(hn::SumOfLanes(d, before));
  }
  for (int64_t s = 0; s < count; ++s) tokens.di[s] = later[s];
}

/// (15)-(17): gradients of q, k and v from the pairs of the chunk and, where they exist, from the state before the
/// chunk (through_state) and the gradient of the state after it.
void RowGradients(const MlstmBackward& work, const MlstmChunk& chunk, const MlstmGates& gates, bool has_state,
                  bool has_d_state, const BackwardMemory& memory, TokenGradients& tokens) {
  const MlstmHead& in = work.in;
  const MlstmWidths width = WidthsWithN(in);
  const int64_t count = chunk.count;
  MultiplyTriangle(count, width.key, memory.d_weights, width.tokens, {memory.k, width.key}, {memory.dq, width.key});
  MultiplyTransposedTriangle(count, width.key, memory.d_weights, width.tokens, {memory.q, width.key},
                             {memory.dk, width.key});
  MultiplyTransposedTriangle(count, padded(in.value_dim), memory.weights, width.tokens,
                             {memory.d_numerator, width.value}, {memory.dv, width.value});
  for (int64_t t = 0; t < count; ++t) {
    float* dq = memory.dq + t * width.key;
    if (has_state) AddScaled(gates.from_state[t], memory.through_state + t * width.key, dq, width.key);
    StoreRow(dq, in.key_dim, work.dq, chunk.first + t);
  }
  std::fill_n(tokens.column, count, 0.0);
  if (has_d_state) {
    Transpose(memory.d_state, in.key_dim, in.value_dim + 1, width.value, memory.state_transposed, width.key);
    MultiplyInSteps(count, width.key, in.value_dim + 1, {memory.v, width.value, 1},
                    {memory.state_transposed, width.key}, {memory.through_state, width.key});
    ScaleRows(gates.to_state, count, width.key, memory.through_state);
    for (int64_t s = 0; s < count; ++s) {
      const float* through_state = memory.through_state + s * width.key;
      tokens.column[s] = Dot(memory.k + s * width.key, through_state, width.key);
      AddScaled(1.0f, through_state, memory.dk + s * width.key, width.key);
    }
    ScaleRows(gates.to_state, count, width.key, memory.k);
    Multiply<Sum::kAdd>(count, padded(in.value_dim), in.key_dim, {memory.k, width.key, 1},
                        {memory.d_state, width.value}, {memory.dv, width.value});
  }
  for (int64_t s = 0; s < count; ++s) {
    StoreRow(memory.dk + s * width.key, in.key_dim, work.dk, chunk.first + s);
    StoreRow(memory.dv + s * width.value, in.value_dim, work.dv, chunk.first + s);
  }
}

/// (18): the gradient of the state before a chunk from that of the state after it.
void RetreatState(const MlstmHead& in, const MlstmGates& gates, int64_t count, bool has_d_state,
                  const BackwardMemory& memory) {
  const MlstmWidths width = WidthsWithN(in);
  ScaleRows(gates.from_state, count, width.key, memory.q);
  const LeftMatrix q_transposed{memory.q, 1, width.key};
  const RightMatrix d_numerator{memory.d_numerator, width.value};
  if (has_d_state) {
    ScaleRow(gates.keep, memory.d_state, in.key_dim * width.value);
    MultiplyInSteps<Sum::kAdd>(in.key_dim, width.value, count, q_transposed, d_numerator,
                               {memory.d_state, width.value});
  } else {
    MultiplyInSteps(in.key_dim, width.value, count, q_transposed, d_numerator, {memory.d_state, width.value});
  }
}

/// (19), (20): gradients of the gates. `whole` is that of the decay over the whole chunk; dm is that of m after the
/// chunk, and on return that of m before it.
void GateGradients(const MlstmBackward& work, const MlstmChunk& chunk, const MlstmGates& gates, double whole,
                   TokenGradients& tokens, double& dm) {
  double later_rows = 0, earlier_columns = 0;
  for (int64_t r = chunk.count - 1; r >= 0; --r) {
    later_rows += tokens.row[r];
    tokens.d_log_f[r] = tokens.across[r] + later_rows + whole;
  }
  for (int64_t r = 0; r < chunk.count; ++r) {
    tokens.d_log_f[r] += earlier_columns;
    earlier_columns += tokens.column[r];
    tokens.di[r] += tokens.column[r];
  }
  for (int64_t t = chunk.count - 1; t >= 0; --t) {
    dm -= kMlstmEpsilon * tokens.h_dot_dh[t] * tokens.inverse[t];
    const double before = t == 0 ? gates.m_in : gates.M[t - 1];
    const double to_input = before < gates.b[t] ? dm : before > gates.b[t] ? 0 : dm / 2;
    tokens.di[t] += to_input;
    dm -= to_input;
    tokens.d_log_f[t] += dm;
  }
  for (int64_t t = 0; t < chunk.count; ++t) {
    work.di.at(chunk.first + t) = static_cast<float>(tokens.di[t]);
    const double f = work.in.f.at(chunk.first + t);
    work.df.at(chunk.first + t) = static_cast<float>(tokens.d_log_f[t] / (1 + std::exp(f)));
  }
}

void BackwardOfChunk(const MlstmBackward& work, const MlstmChunk& chunk, const MlstmGates& gates, const float* state,
                     bool has_d_state, const BackwardMemory& memory, double& dm) {
  const MlstmHead& in = work.in;
  const MlstmWidths width = WidthsWithN(in);
  const int64_t count = chunk.count;
  TokenGradients tokens;
  LoadRows<Next::kEarlier>(in.q, chunk, in.key_dim, width.key, memory.q);
  LoadRows<Next::kEarlier>(in.k, chunk, in.key_dim, width.key, memory.k);
  LoadValues<Next::kEarlier>(in, chunk, width.value, memory.v);
  Transpose(memory.k, count, in.key_dim, width.key, memory.k_transposed, width.tokens);
  Transpose(memory.v, count, in.value_dim, width.value, memory.v_transposed, width.tokens);
  MultiplyToTriangle(count, in.key_dim, {memory.q, width.key, 1}, {memory.k_transposed, width.tokens},
                     {memory.weights, width.tokens});
  MakeWeights(gates, count, width.tokens, memory.weights, memory.D);
  const float* n = nullptr;
  if (state != nullptr) {
    Transpose(state, in.key_dim, in.value_dim + 1, width.value, memory.state_transposed, width.key);
    n = memory.state_transposed + in.value_dim * width.key;
  }
  DivideByDenominators(work, chunk, gates, memory, tokens);
  const LeftMatrix d_numerator{memory.d_numerator, width.value, 1};
  MultiplyToTriangle(count, in.value_dim, d_numerator, {memory.v_transposed, width.tokens},
                     {memory.d_weights, width.tokens});
  if (state != nullptr) {
    MultiplyInSteps(count, width.key, in.value_dim, d_numerator, {memory.state_transposed, width.key},
                    {memory.through_state, width.key});
  }
  ScoreGradients(in, gates, count, n, memory, tokens);
  RowGradients(work, chunk, gates, state != nullptr, has_d_state, memory, tokens);
  const bool both = state != nullptr && has_d_state;
  const double whole = both ? gates.keep * WideDot(state, memory.d_state, in.key_dim * width.value) : 0;
  if (state != nullptr) RetreatState(in, gates, count, has_d_state, memory);
  GateGradients(work, chunk, gates, whole, tokens, dm);
}

/// Whether there is a state before chunk c.
bool HasState(const MlstmHead& in, int64_t c) {
  return !in.chunks[c].fresh && (c > 0 || in.start.C != nullptr);
}

/// The states before every chunk that has one and, if needed, after the last; n . q of every token.
/// Returns the number of states.
int64_t MakeStates(const MlstmBackward& work, const BackwardMemory& memory, MlstmGates& gates) {
  const MlstmHead& in = work.in;
  const MlstmWidths width = WidthsWithN(in);
  const int64_t size = in.key_dim * width.value;
  const bool given = in.start.C != nullptr;
  memory.m[0] = given ? *in.start.m : 0;
  std::fill_n(memory.n, width.key, 0.0);
  if (given) {
    LoadState(in.start, in, width.value, memory.states);
    std::copy_n(in.start.n, in.key_dim, memory.n);
  } else {
    std::fill_n(memory.states, size, 0.0f);
  }
  int64_t states = given ? 1 : 0;
  for (int64_t c = 0; c < in.chunk_count; ++c) {
    const MlstmChunk& chunk = in.chunks[c];
    const bool has_state = HasState(in, c);
    MakeGates(in, chunk, has_state ? memory.m[c] : 0, gates);
    memory.m[c + 1] = gates.m_out;
    LoadRows<Next::kLater>(in.q, chunk, in.key_dim, width.key, memory.q);
    LoadRows<Next::kLater>(in.k, chunk, in.key_dim, width.key, memory.k);
    if (!has_state) std::fill_n(memory.n, width.key, 0.0);
    AdvanceNormaliser(gates, chunk.count, width.key, memory.q, memory.k, memory.n, memory.n_dot_q + chunk.first);
    const bool last = c + 1 == in.chunk_count;
    if (last ? work.d_end.C == nullptr : !HasState(in, c + 1)) continue;  // the state after it is not needed
    LoadValues<Next::kLater>(in, chunk, width.value, memory.v);
    float* after = memory.states + states * size;
    AdvanceState(in, gates, chunk.count, width, has_state ? after - size : nullptr, memory.k, memory.v, after);
    ++states;
  }
  return states;
}

void Backward(const MlstmBackward& work) {
  const MlstmHead& in = work.in;
  const MlstmWidths width = WidthsWithN(in);
  const int64_t size = in.key_dim * width.value;
  MlstmScratch scratch{work.scratch};
  const BackwardMemory memory(in, scratch);
  MlstmGates gates;
  int64_t states = MakeStates(work, memory, gates);

  // exp(m) C is invariant, so a gradient of C at a fixed m is also one of m.
  bool has_d_state = work.d_end.C != nullptr;
  double dm = 0;
  if (has_d_state) {
    LoadState(work.d_end, in, width.value, memory.d_state);
    const float* end = memory.states + std::max<int64_t>(states - 1, 0) * size;
    dm = *work.d_end.m - WideDot(end, memory.d_state, size);
    if (in.chunk_count > 0) --states;
  }
  for (int64_t c = in.chunk_count - 1; c >= 0; --c) {
    const MlstmChunk& chunk = in.chunks[c];
    const bool has_state = HasState(in, c);
    MakeGates(in, chunk, has_state ? memory.m[c] : 0, gates);
    const float* before = has_state ? memory.states + --states * size : nullptr;
    BackwardOfChunk(work, chunk, gates, before, has_d_state, memory, dm);
    has_d_state = has_state;
    if (!has_state) dm = 0;  // m before it is 0
  }
  if (work.d_start.C == nullptr) return;
  if (!has_d_state) std::fill_n(memory.d_state, size, 0.0f);
  StoreState(memory.d_state, in, width.value, work.d_start);
  *work.d_start.m = static_cast<float>(dm + WideDot(memory.states, memory.d_state, size));
}

int64_t BackwardScratch(const MlstmHead& in) {
  MlstmScratch count{nullptr};
  BackwardMemory(in, count);
  return count.used;
}

}  // namespace
}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tamis::kernels {

HWY_EXPORT(Backward);
HWY_EXPORT(BackwardScratch);

int64_t mlstm_backward_scratch(const MlstmHead& in) {
  return HWY_DYNAMIC_DISPATCH(BackwardScratch)(in);
}

void mlstm_backward(const MlstmBackward& work) {
  HWY_DYNAMIC_DISPATCH(Backward)(work);
}

}  // namespace tamis::kernels
#endif
