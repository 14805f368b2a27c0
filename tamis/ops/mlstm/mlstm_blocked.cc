// The mLSTM in plain torch, all chunks of some heads at once; only the states are computed one after the other.
// Equation numbers: README.md. Rows are sequences and heads, N = B H; L tokens a chunk, C chunks. The normaliser n is
// one more column of the state and belongs to one more value, 1: `x_V1` has V + 1 columns.

#include "tamis/ops/mlstm/mlstm_blocked.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "tamis/ops/attention.h"
#include "tamis/ops/blocked.h"

namespace tamis::ops {

using at::Tensor;

namespace {

Tensor reversed_cumsum(const Tensor& x) {
  return x.flip(-1).cumsum_(-1).flip(-1);
}

/// The largest of the numbers before and at each one that belong to the same document.
Tensor largest_so_far(const Tensor& x_NT, const Tensor& number_NT) {
  if (!number_NT.defined()) return std::get<0>(x_NT.cummax(1));
  Tensor largest = x_NT;
  for (int64_t step = 1; step < x_NT.size(1); step *= 2) {
    const int64_t rest = x_NT.size(1) - step;
    const Tensor here = largest.narrow(1, step, rest), before = largest.narrow(1, 0, rest);
    const Tensor same = number_NT.narrow(1, step, rest) == number_NT.narrow(1, 0, rest);
    largest = at::cat({largest.narrow(1, 0, step), at::where(same, at::maximum(here, before), here)}, 1);
  }
  return largest;
}

/// Gates of all rows in float64, [N, T]; tokens behind the last one neither add nor forget. Within a document
/// F_t = sum log sigmoid(f), b = i - F, m = F + M, and every weight is exp of a difference of b and M.      (8)
struct Gates {
  Tensor i, log_f;
  Tensor begins, number;  // bool and int64, if documents are given
  Tensor start;           // m before the first token, [N, 1]
  Tensor F, b, M;

  Gates(const Tensor& i_BTH, const Tensor& f_BTH, const MlstmOptions& options, int64_t padded, at::TensorOptions on) {
    const int64_t B = i_BTH.size(0), T = i_BTH.size(1), H = i_BTH.size(2);
    const auto rows = [&](const Tensor& x, double beyond) {
      const Tensor all = at::full({B, H, padded}, beyond, on);
      all.narrow(2, 0, T).copy_(x.transpose(1, 2));
      return all.view({B * H, padded});
    };
    i = rows(i_BTH, -INFINITY);
    log_f = rows(at::log_sigmoid(f_BTH.to(on)), 0);
    start = options.state ? options.state->m_BH.to(on).reshape({B * H, 1}) : at::zeros({B * H, 1}, on);
    F = log_f.cumsum(1);
    Tensor base = start;
    if (options.document) {
      const Tensor document = options.document->to(on.device());
      const Tensor begins_BT = at::zeros({B, padded}, on.dtype(at::kBool));
      begins_BT.narrow(1, 1, T - 1).copy_(document.narrow(1, 1, T - 1) != document.narrow(1, 0, T - 1));
      begins = begins_BT.unsqueeze(1).expand({B, H, padded}).reshape({B * H, padded});
      number = begins.to(at::kLong).cumsum(1);
      const Tensor index = at::arange(padded, on.dtype(at::kLong));
      const Tensor begin = std::get<0>(at::where(begins, index, 0).cummax(1));
      F = F - (F - log_f).gather(1, begin);
      base = start * (number == 0);
    }
    b = i - F;
    M = at::maximum(largest_so_far(b, number), base);
  }

  Tensor m() const { return F + M; }
};

/// A call: rows, cut into chunks of L tokens.
class Chunks {
 public:
  Chunks(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& i, const Tensor& f,
         const MlstmOptions& options)
      : B(q.size(0)),
        T(q.size(1)),
        H(q.size(2)),
        K(q.size(3)),
        V(v.size(3)),
        L(std::min<int64_t>(std::clamp<int64_t>(options.chunk, 16, 256), T)),
        C((T + L - 1) / L),
        on(q.options().dtype(computing_dtype(q.scalar_type()))),
        gate_options(at::TensorOptions(q.device().is_mps() ? at::kCPU : q.device()).dtype(at::kDouble)),
        gates(i, f, options, C * L, gate_options),
        q_(rows(q).mul_(1 / std::sqrt(static_cast<double>(K)))),
        k_(rows(k)),
        v_(rows(v, 1)) {
    v_.select(3, V).fill_(1);
    state_ = at::zeros({B * H, K, V + 1}, on);
    if (options.state) {
      state_.narrow(2, 0, V).copy_(options.state->C_BHKV.reshape({B * H, K, V}));
      state_.select(2, V).copy_(options.state->n_BHK.reshape({B * H, K}));
    }
  }

  const int64_t B, T, H, K, V, L, C;
  const at::TensorOptions on, gate_options;
  const Gates gates;

  const Tensor& q() const { return q_; }
  const Tensor& k() const { return k_; }
  const Tensor& v() const { return v_; }
  const Tensor& first_state() const { return state_; }

  /// [B, T, H, D] as [N, C, L, D + more], more columns and missing tokens zero.
  Tensor rows(const Tensor& x, int64_t more = 0) const {
    const Tensor all = at::zeros({B, H, C * L, x.size(3) + more}, on);
    all.narrow(2, 0, T).narrow(3, 0, x.size(3)).copy_(x.transpose(1, 2));
    return all.view({B * H, C, L, x.size(3) + more});
  }
  Tensor from_rows(const Tensor& x) const {
    return x.reshape({B, H, C * L, x.size(-1)}).narrow(2, 0, T).transpose(1, 2);
  }

  /// Rows that are processed together, so that their pairs and states fit the budget if they can.
  int64_t rows_together() const {
    return std::max<int64_t>(1, pair_budget(on.device()) / (C * std::max(L * L, K * (V + 1))));
  }

 private:
  Tensor q_, k_, v_, state_;
};

/// Some rows: weights of Eq. (8), pairs, and the states before every chunk and after the last one.
struct Pass {
  Tensor q, k, v;             // [R, L, .], R = rows C
  Tensor D, W, E, g;          // [R, L, L], [R, L, 1], [R, L, 1], [rows, C, 1, 1]
  Tensor P;                   // (9)
  Tensor states;              // [rows, C + 1, K, V + 1]
  Tensor numerator, n_dot_q;  // [R, L, V], [R, L, 1]
  Tensor least;               // exp(-m), [R, L, 1]
  int64_t rows, C;

  Pass(const Chunks& chunks, int64_t first, int64_t count) : rows(count), C(chunks.C) {
    const int64_t V = chunks.V;
    const auto part = [&](const Tensor& x) { return x.narrow(0, first, count).flatten(0, 1); };
    q = part(chunks.q());
    k = part(chunks.k());
    v = part(chunks.v());
    weigh(chunks, first);
    P = at::bmm(q, k.transpose(1, 2)).mul_(D);

    states = at::empty({rows, C + 1, chunks.K, V + 1}, chunks.on);
    states.narrow(1, 1, C)
        .view({rows, C, chunks.K, V + 1})
        .copy_(at::bmm((k * E).transpose(1, 2), v).view({rows, C, chunks.K, V + 1}));
    states.select(1, 0).copy_(chunks.first_state().narrow(0, first, count));
    for (int64_t c = 0; c < C; ++c) states.select(1, c + 1).addcmul_(states.select(1, c), g.select(1, c));  // (11)

    const Tensor before = states_before();
    numerator = at::bmm(P, v.narrow(2, 0, V)).baddbmm_(q * W, before.narrow(2, 0, V));
    // Everything is divided by n . q, which may nearly vanish.
    const auto wide = [dtype = widest_dtype(q.device())](const Tensor& x) { return x.to(dtype); };
    const Tensor n = at::bmm(wide(D), wide(k)).addcmul_(wide(W), wide(before.select(2, V)).unsqueeze(1));
    n_dot_q = n.mul_(q).sum(-1, /*keepdim=*/true).to(q.scalar_type());
  }

  Tensor states_before() const { return states.narrow(1, 0, C).flatten(0, 1); }
  Tensor denominator() const { return at::maximum(n_dot_q.abs(), least) + kMlstmEpsilon; }  // (4)

 private:
  void weigh(const Chunks& chunks, int64_t first) {
    const Gates& gates = chunks.gates;
    const auto chunked = [&](const Tensor& x) { return x.narrow(0, first, rows).view({rows, C, chunks.L}); };
    const auto ends = [&](const Tensor& x, const Tensor& before) {  // of each chunk, and before it
      const Tensor end = chunked(x).select(2, chunks.L - 1);
      return std::pair(end, at::cat({before.narrow(0, first, rows), end.narrow(1, 0, C - 1)}, 1));
    };
    const Tensor b = chunked(gates.b), M = chunked(gates.M);
    const auto [M_end, M_before] = ends(gates.M, gates.start);
    Tensor log_D = (b.unsqueeze(2) - M.unsqueeze(3)).to(chunks.on);
    Tensor log_W = (M_before.unsqueeze(2) - M).to(chunks.on), log_E = (b - M_end.unsqueeze(2)).to(chunks.on);
    Tensor log_g = (M_before - M_end).to(chunks.on);
    const Tensor later = at::ones({chunks.L, chunks.L}, chunks.on.dtype(at::kBool)).triu_(1);
    log_D.masked_fill_(later, -INFINITY);
    if (gates.number.defined()) {
      const Tensor number = chunked(gates.number);
      const auto [number_end, number_before] = ends(gates.number, at::zeros_like(gates.number.narrow(1, 0, 1)));
      const auto forget = [&](const Tensor& log_weight, const Tensor& from, const Tensor& to) {
        log_weight.masked_fill_((from != to).to(log_weight.device()), -INFINITY);
      };
      forget(log_D, number.unsqueeze(2), number.unsqueeze(3));
      forget(log_W, number_before.unsqueeze(2), number);
      forget(log_E, number, number_end.unsqueeze(2));
      forget(log_g, number_before, number_end);
    }
    D = log_D.exp_().flatten(0, 1);
    W = log_W.exp_().flatten(0, 1).unsqueeze(2);
    E = log_E.exp_().flatten(0, 1).unsqueeze(2);
    g = log_g.exp_().view({rows, C, 1, 1});
    least = chunked(gates.m()).neg().clamp_max(kLargestNegativeM).exp().to(chunks.on).flatten(0, 1).unsqueeze(2);
  }
};

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> mlstm_blocked(const Tensor& q, const Tensor& k, const Tensor& v,
                                                         const Tensor& i, const Tensor& f,
                                                         const MlstmOptions& options) {
  const WithoutAutocast without_autocast;
  const int64_t B = q.size(0), T = q.size(1), H = q.size(2), K = q.size(3), V = v.size(3);
  const auto on = q.options().dtype(computing_dtype(q.scalar_type()));
  if (B * T * H == 0) {
    if (options.state) {
      const MlstmState& state = *options.state;
      return {at::zeros(v.sizes(), v.options()), state.C_BHKV.clone(), state.n_BHK.clone(), state.m_BH.clone()};
    }
    return {at::zeros(v.sizes(), v.options()), at::zeros({B, H, K, V}, on), at::zeros({B, H, K}, on),
            at::zeros({B, H}, on)};
  }
  const Chunks chunks(q, k, v, i, f, options);
  const Tensor h = at::empty({B * H, chunks.C * chunks.L, V}, on), last = at::empty({B * H, K, V + 1}, on);
  for (int64_t first = 0, count = chunks.rows_together(); first < B * H; first += count) {
    const int64_t rows = std::min(count, B * H - first);
    const Pass pass(chunks, first, rows);
    h.narrow(0, first, rows).copy_((pass.numerator / pass.denominator()).view({rows, -1, V}));  // (10)
    last.narrow(0, first, rows).copy_(pass.states.select(1, chunks.C));
  }
  const Tensor state = last.view({B, H, K, V + 1});
  return {chunks.from_rows(h).to(v.scalar_type()), state.narrow(3, 0, V).contiguous(), state.select(3, V).contiguous(),
          chunks.gates.m().select(1, chunks.C * chunks.L - 1).to(on).view({B, H})};
}

namespace {

/// The gradients of the gates, [N, T] in float64, and of m before the first token.
struct GateGradients {
  Tensor i, log_f;  // of the weights; through m is added by add_stabiliser
  Tensor m;         // of every token's m, 1e-6 added to exp(-m) and what is returned                  (20)
  Tensor start;     // [N]

  explicit GateGradients(const Tensor& like)
      : i(at::zeros_like(like)),
        log_f(at::zeros_like(like)),
        m(at::zeros_like(like)),
        start(at::zeros_like(like.select(1, 0))) {}

  /// By (1) the gradient of m_t goes to i_t or to log f_t and m_{t-1}, whichever is larger.
  void add_stabiliser(const Gates& gates) {
    const int64_t T = m.size(1);
    Tensor before = at::cat({gates.start, gates.m().narrow(1, 0, T - 1)}, 1);
    if (gates.begins.defined()) before = before.masked_fill(gates.begins, 0);
    const Tensor added = gates.i > gates.log_f + before;
    const Tensor ends = gates.begins.defined() ? added.logical_or(gates.begins) : added;  // nothing goes to m_{t-1}
    // Each m gets the gradients of its own and of the following tokens, up to the next end.
    const Tensor zero = at::zeros_like(m.narrow(1, 0, 1)), index = at::arange(T, m.options().dtype(at::kLong));
    const Tensor sums = at::cat({reversed_cumsum(m), zero}, 1);
    const Tensor next = std::get<0>(at::where(ends, index, T).flip(1).cummin(1)).flip(1);
    const Tensor after = at::cat({next.narrow(1, 1, T - 1), at::full_like(next.narrow(1, 0, 1), T)}, 1);
    const Tensor total = sums.narrow(1, 0, T) - sums.gather(1, after);
    i.add_(total.masked_fill(added.logical_not(), 0));
    log_f.add_(total.masked_fill(added, 0));
    start.add_(total.masked_fill(added, 0).select(1, 0));
  }
};

/// The gradients of some rows, written into tensors of all rows.
struct RowGradients {
  Tensor q, k, v;  // [N, C, L, .], v with one more column
  Tensor state;    // of the first one, [N, K, V + 1]; before the call that of the last one
  GateGradients gates;

  void add(const Chunks& chunks, const Pass& pass, int64_t first, const Tensor& dh) {
    const int64_t rows = pass.rows, C = chunks.C, L = chunks.L, K = chunks.K, V = chunks.V;
    const auto whole = [&](const Tensor& x) { return x.flatten(0, 1); };
    const Tensor den = pass.denominator(), y = (pass.numerator / den * dh).sum(-1, /*keepdim=*/true);  // (13)
    const Tensor d_nq =
        (pass.n_dot_q.sign() * y / den).neg_().masked_fill_(pass.n_dot_q.abs() <= pass.least, 0);  // (14)
    const Tensor dn = at::cat({dh / den, d_nq}, 2);                                                // (12)
    const Tensor dP = at::bmm(dn, pass.v.transpose(1, 2)), x = pass.P * dP, dS = dP.mul_(pass.D);
    const Tensor Wq = pass.q * pass.W, Ek = pass.k * pass.E;

    // States after every chunk, the last one first.                                                   (18)
    const Tensor d_states = at::empty({rows, C + 1, K, V + 1}, chunks.on);
    d_states.narrow(1, 0, C).copy_(at::bmm(Wq.transpose(1, 2), dn).view({rows, C, K, V + 1}));
    const Tensor mine = state.narrow(0, first, rows);
    d_states.select(1, C).copy_(mine);
    const auto inner = [&](const Tensor& a, const Tensor& b) {  // differences of such sums count: in float64
      return (a * b).sum({-2, -1}, /*keepdim=*/false, gates.m.scalar_type());
    };
    gates.m.narrow(0, first, rows).select(1, chunks.T - 1).sub_(inner(pass.states.select(1, C), d_states.select(1, C)));
    for (int64_t c = C - 1; c >= 0; --c) {
      d_states.select(1, c).addcmul_(d_states.select(1, c + 1), pass.g.select(1, c));
    }
    mine.copy_(d_states.select(1, 0));
    const Tensor after = whole(d_states.narrow(1, 1, C));

    const Tensor from_states = at::bmm(dn, pass.states_before().transpose(1, 2));
    const Tensor to_states = at::bmm(pass.v, after.transpose(1, 2));
    const auto write = [&](const Tensor& to, const Tensor& value) {
      to.narrow(0, first, rows).copy_(value.view({rows, C, L, -1}));
    };
    write(q, at::bmm(dS, pass.k).addcmul_(pass.W, from_states));                // (15)
    write(k, at::bmm(dS.transpose(1, 2), pass.q).addcmul_(pass.E, to_states));  // (16)
    write(v, at::bmm(pass.P.transpose(1, 2), dn).baddbmm_(Ek, after));          // (17)

    // Gates.                                                                           (19)
    const auto of_tokens = [&](const Tensor& value) { return value.to(gates.m.options()).view({rows, C, L}); };
    const Tensor u = of_tokens((Wq * from_states).sum(-1)), e = of_tokens((Ek * to_states).sum(-1));
    const Tensor through = (pass.g * inner(pass.states.narrow(1, 0, C), d_states.narrow(1, 1, C)).view({rows, C, 1, 1}))
                               .to(gates.m.options())
                               .view({rows, C, 1});
    const Tensor earlier = at::ones({L, L}, chunks.on).triu_(1);  // [s, r]: s < r
    const Tensor across = at::matmul(x, earlier).tril_().sum(1);  // s < r <= t
    const auto add_to = [&](const Tensor& to, const Tensor& value) {
      to.narrow(0, first, rows).add_(value.reshape({rows, C * L}));
    };
    add_to(gates.i, of_tokens(x.sum(1)) + e);
    add_to(gates.log_f, of_tokens(across) + reversed_cumsum(u) + e.cumsum(2) - e + through);
    add_to(gates.m, of_tokens(y / den) * -kMlstmEpsilon);
    gates.start.narrow(0, first, rows).add_(inner(pass.states.select(1, 0), d_states.select(1, 0)));
  }
};

}  // namespace

std::array<Tensor, 8> mlstm_backward_blocked(const MlstmOutputGradients& grad, const Tensor& q, const Tensor& k,
                                             const Tensor& v, const Tensor& i, const Tensor& f,
                                             const MlstmOptions& options) {
  const WithoutAutocast without_autocast;
  const int64_t B = q.size(0), T = q.size(1), H = q.size(2), K = q.size(3), V = v.size(3), N = B * H;
  const auto zeros = [](const Tensor& x) { return at::zeros(x.sizes(), x.options()); };
  const auto on = q.options().dtype(computing_dtype(q.scalar_type()));
  const auto or_zeros = [&](const std::optional<Tensor>& x, at::IntArrayRef shape) {
    return x ? x->to(on) : at::zeros(shape, on);
  };
  const Tensor dC = or_zeros(grad.C, {B, H, K, V}), dn = or_zeros(grad.n, {B, H, K}), dm = or_zeros(grad.m, {B, H});
  const Tensor none = at::empty({0}, q.options());
  if (B * T * H == 0) {
    const bool given = options.state.has_value();
    return {zeros(q),
            zeros(k),
            zeros(v),
            zeros(i),
            zeros(f),
            given ? dC.clone() : none,
            given ? dn.clone() : none,
            given ? dm.clone() : none};
  }
  const Chunks chunks(q, k, v, i, f, options);
  RowGradients d{.q = at::empty_like(chunks.q()),
                 .k = at::empty_like(chunks.k()),
                 .v = at::empty_like(chunks.v()),
                 .state = at::cat({dC, dn.unsqueeze(3)}, 3).view({N, K, V + 1}),
                 .gates = GateGradients(chunks.gates.i)};
  d.gates.m.select(1, T - 1).copy_(dm.reshape({N}));
  const Tensor dh = grad.h ? chunks.rows(*grad.h) : at::zeros({N, chunks.C, chunks.L, V}, on);
  for (int64_t first = 0, count = chunks.rows_together(); first < N; first += count) {
    const int64_t rows = std::min(count, N - first);
    d.add(chunks, Pass(chunks, first, rows), first, dh.narrow(0, first, rows).flatten(0, 1));
  }
  d.gates.add_stabiliser(chunks.gates);
  d.q.mul_(1 / std::sqrt(static_cast<double>(K)));

  const auto like = [&](const Tensor& x, const Tensor& to) { return x.to(to.scalar_type()).contiguous(); };
  const auto of_gate = [&](const Tensor& x, const Tensor& to) {
    return chunks.from_rows(x.unsqueeze(2)).squeeze(3).to(to.options()).contiguous();
  };
  const Tensor df = of_gate(d.gates.log_f, f.to(chunks.gate_options)) * at::sigmoid(f.to(chunks.gate_options).neg());
  std::array<Tensor, 8> result = {like(chunks.from_rows(d.q), q),
                                  like(chunks.from_rows(d.k), k),
                                  like(chunks.from_rows(d.v).narrow(3, 0, V), v),
                                  of_gate(d.gates.i, i),
                                  df.to(f.options()).contiguous(),
                                  none,
                                  none,
                                  none};
  if (options.state) {
    const Tensor state = d.state.view({B, H, K, V + 1});
    result[5] = state.narrow(3, 0, V).contiguous();
    result[6] = state.select(3, V).contiguous();
    result[7] = d.gates.start.to(on).view({B, H});
  }
  return result;
}

}  // namespace tamis::ops
