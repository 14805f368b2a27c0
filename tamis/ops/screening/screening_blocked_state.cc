#include "tamis/ops/screening/screening_blocked_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "tamis/ops/blocked.h"
#include "tamis/ops/screening/screening_blocked.h"
#include "tamis/ops/screening/screening_blocked_parts.h"
#include "tamis/ops/screening/screening_functions.h"
#include "tamis/ops/screening/screening_state_checks.h"
#include "tamis/ops/window.h"

namespace tamis::ops {

using at::Tensor;

namespace {

constexpr int64_t kShortWindow = 64;  // tokens: shorter ones are not worth a group of their own
constexpr int64_t kLeastCapacity = 64;

/// Calls visit(row, offset, count) for the rows of the positions first, first + 1, ... in a ring, in their order.
template <typename Visit>
void for_rows(int64_t capacity, int64_t first, int64_t count, const Visit& visit) {
  for (int64_t done = 0; done < count;) {
    const int64_t row = (first + done) % capacity, rows = std::min(count - done, capacity - row);
    visit(row, done, rows);
    done += rows;
  }
}

/// Positions first, first + 1, ... of a ring [heads, capacity, D]; a view where they are adjacent.
Tensor ring_rows(const Tensor& ring, int64_t first, int64_t count) {
  if (count == 0) return ring.narrow(1, 0, 0);
  std::vector<Tensor> parts;
  for_rows(ring.size(1), first, count,
           [&](int64_t row, int64_t, int64_t rows) { parts.push_back(ring.narrow(1, row, rows)); });
  return parts.size() == 1 ? parts[0] : at::cat(parts, 1);
}

/// Writes the positions first, first + 1, ..., of which only the last ones stay where the ring is shorter.
void set_ring_rows(const Tensor& ring, int64_t first, const Tensor& x) {
  const int64_t kept = std::min(x.size(1), ring.size(1)), left_out = x.size(1) - kept;
  for_rows(ring.size(1), first + left_out, kept, [&](int64_t row, int64_t offset, int64_t rows) {
    ring.narrow(1, row, rows).copy_(x.narrow(1, left_out + offset, rows));
  });
}

/// [heads, 1, 2 W - 1] for a ring of W rows. Entry W - 1 - r + c, for c < W, is the softmask of the key in row c for a
/// query in row r: a query uses W adjacent entries.                              (10)
Tensor softmask_table(int64_t W, const Tensor& window_H1, const Tensor& inverse_w_H1,
                      const ScreeningHeadOptions& options) {
  const Tensor distance = at::arange(W - 1, -W, -1, window_H1.options()).remainder(W);
  const Tensor softmask = softmask_of(std::numbers::pi * distance * inverse_w_H1, options);
  return softmask.masked_fill(distance >= window_H1, 0).to(at::kFloat).unsqueeze(1);
}

}  // namespace

/// Heads first, ..., first + count - 1 in the order of the groups.
struct ScreeningBlockedState::Group {
  int64_t first, count;
  int64_t span;  // ceil(w) of the longest window; kLongestSpan if it is infinite

  bool flat() const { return span == kLongestSpan; }
  Tensor of(const Tensor& x_H) const { return x_H.narrow(0, first, count); }
};

/// What the states of a layer share. `_H`: heads in the order of the groups.
struct ScreeningBlockedState::Heads {
  int64_t K, V;
  ScreeningHeadOptions options;
  Tensor s_w, s_r;             // as given, on the CPU
  std::vector<int64_t> order;  // the head in each place
  Tensor places, heads;        // `order` and its inverse on the device; undefined where they change nothing
  std::vector<Group> groups;
  Tensor s_w_H, s_r_H;             // on the CPU
  Tensor window_H1, inverse_w_H1;  // tokens
  Tensor inverse_r_H11, one;       // 1/r; 1
  Tensor angle_step_H1;            // of MiPE per token; undefined where no head rotates

  Heads(const Tensor& s_w_in, const Tensor& s_r_in, int64_t key_dim, int64_t value_dim,
        const ScreeningHeadOptions& given, at::Device device)
      : K(key_dim),
        V(value_dim),
        options(given),
        s_w(s_w_in.detach().cpu().to(at::kDouble)),
        s_r(s_r_in.detach().cpu().to(at::kDouble)) {
    std::vector<HeadNumbers> numbers = head_numbers(s_w, s_r, options);
    sort_into_groups(numbers, device);
    const Tensor order_H = at::tensor(order, at::kLong);
    s_w_H = s_w.index_select(0, order_H);
    s_r_H = s_r.index_select(0, order_H);

    std::vector<HeadNumbers> in_order;
    for (const int64_t head : order) in_order.push_back(numbers[head]);
    const auto column = [&](double HeadNumbers::*number, at::ScalarType dtype) {
      return numbers_of(in_order, number).to(dtype).unsqueeze(1).to(device);
    };
    window_H1 = column(&HeadNumbers::window, widest_dtype(device));
    inverse_w_H1 = column(&HeadNumbers::inverse_w, widest_dtype(device));
    inverse_r_H11 = column(&HeadNumbers::inverse_r, at::kFloat).unsqueeze(2);
    one = at::ones({1}, inverse_r_H11.options());
    angle_step_H1 = angle_steps(in_order, device);
  }

  void sort_into_groups(const std::vector<HeadNumbers>& numbers, at::Device device) {
    const auto H = static_cast<int64_t>(numbers.size());
    const auto span = [&](int64_t head) {
      return std::max<int64_t>(visible_span(numbers[head].window, kLongestSpan), 1);
    };
    order.resize(H);
    std::iota(order.begin(), order.end(), int64_t{0});
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return span(a) < span(b); });
    for (int64_t end = H; end > 0; end = groups.back().first) {
      const int64_t longest = span(order[end - 1]);
      int64_t first = end - 1;
      while (first > 0 && (longest <= kShortWindow || span(order[first - 1]) > longest / 4)) --first;
      groups.push_back({first, end - first, longest});
    }
    if (std::is_sorted(order.begin(), order.end())) return;
    places = at::tensor(order, at::kLong).to(device);
    heads = at::tensor(order, at::kLong).argsort().to(device);
  }

  /// For its bytes, on which the shapes of Trim and Softmask have no effect.
  ScreeningState kernel_state() const {
    ScreeningHeadOptions own = options;
    own.trim_power = ScreeningHeadOptions().trim_power;
    own.softmask = ScreeningHeadOptions().softmask;
    return ScreeningState(s_w, s_r, K, V, own);
  }

  int64_t bytes(const Group& group, int64_t capacity) const {
    const int64_t softmask = group.flat() || capacity == 0 ? 0 : 2 * capacity - 1;
    return group.count * (capacity * (K + V) + softmask) * static_cast<int64_t>(sizeof(float));
  }
};

ScreeningBlockedState::ScreeningBlockedState(const Tensor& s_w_H, const Tensor& s_r_H, int64_t key_dim,
                                             int64_t value_dim, const ScreeningHeadOptions& options, at::Device device)
    : heads_(std::make_shared<const Heads>(s_w_H, s_r_H, key_dim, value_dim, options, device)) {
  for (const Group& group : heads_->groups) {
    const auto rows = [&](int64_t dim) { return at::empty({group.count, 0, dim}, heads_->inverse_r_H11.options()); };
    stores_.push_back({rows(key_dim), rows(value_dim), {}});
  }
}

int64_t ScreeningBlockedState::capacity_for(size_t group, int64_t last) const {
  const int64_t capacity = stores_[group].capacity();
  if (last <= capacity) return capacity;
  return std::min(heads_->groups[group].span, std::max(last + last / 8, kLeastCapacity));
}

/// Makes room for the keys up to position `last`.
void ScreeningBlockedState::grow(int64_t last) {
  for (size_t g = 0; g < stores_.size(); ++g) {
    Store& store = stores_[g];
    const Group& group = heads_->groups[g];
    const int64_t before = store.capacity(), capacity = capacity_for(g, last);
    if (capacity == before) continue;
    const auto longer = [&](const Tensor& x) {
      const Tensor more = at::zeros({group.count, capacity, x.size(2)}, x.options());
      more.narrow(1, 0, before).copy_(x);  // the ring was not full, so that every key keeps its row
      return more;
    };
    const Tensor k = longer(store.k), v = longer(store.v);
    if (!group.flat()) {
      store.softmask =
          softmask_table(capacity, group.of(heads_->window_H1), group.of(heads_->inverse_w_H1), heads_->options);
    }
    store.k = k;
    store.v = v;
  }
}

Tensor ScreeningBlockedState::step(std::span<ScreeningBlockedState* const> states, const Tensor& q_in,
                                   const Tensor& k_in, const Tensor& v_in, const std::optional<Tensor>& gate) {
  const WithoutAutocast without_autocast;
  const auto B = static_cast<int64_t>(states.size());
  TORCH_CHECK_VALUE(B > 0, "screening state: step needs at least one state");
  const Heads& heads = *states[0]->heads_;
  const auto H = static_cast<int64_t>(heads.order.size());
  const auto check_device = [&](const char* name, const Tensor& x) {
    TORCH_CHECK_VALUE(x.device() == heads.one.device(), "screening state: ", name, " must be on ", heads.one.device(),
                      ", but is on ", x.device());
  };
  const int64_t C = check_state_step({B, H, heads.K, heads.V}, q_in, k_in, v_in, gate, check_device);

  const auto rows = [&](const Tensor& x) {  // [B, H, C, .], heads in the order of the groups
    return (heads.places.defined() ? x.index_select(2, heads.places) : x).transpose(1, 2).to(at::kFloat);
  };
  // Trim amplifies rounding of similarities.
  const Tensor qk = UnitRows(at::stack({rows(q_in), rows(k_in)}), widest_dtype(q_in.device())).unit;
  const Tensor v = UnitRows(rows(v_in), at::kFloat).unit;
  Tensor h = at::empty({B, H, C, heads.V}, v.options());
  for (int64_t b = 0; b < B; ++b) {
    ScreeningBlockedState& state = *states[b];
    const Tensor qk_b = qk.select(1, b);
    if (heads.angle_step_H1.defined()) {
      rotation_of(heads.angle_step_H1, state.position_, C, heads.inverse_r_H11.options()).turn(qk_b, 1);
    }
    state.grow(state.position_ + C);
    if (C == 1) {
      state.answer_token(qk_b[0], qk_b[1], v[b], h[b]);
    } else {
      state.answer_chunk(qk_b[0], qk_b[1], v[b], h[b]);
    }
    state.position_ += C;
  }
  if (heads.options.tanh_norm) h.mul_(TanhNorm(h).factor);
  if (heads.heads.defined()) h = h.index_select(1, heads.heads);
  Tensor u = h.transpose(1, 2);
  if (gate) u = u * gate_factor(*gate);  // (18)
  return u.to(v_in.scalar_type());
}

void ScreeningBlockedState::answer_token(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& h) {
  for (size_t g = 0; g < stores_.size(); ++g) {
    const Group& group = heads_->groups[g];
    const Store& store = stores_[g];
    const int64_t row = position_ % store.capacity(), keys = std::min(position_ + 1, store.capacity());
    store.k.narrow(1, row, 1).copy_(group.of(k));
    store.v.narrow(1, row, 1).copy_(group.of(v));
    const Tensor similarity = at::bmm(group.of(q), store.k.narrow(1, 0, keys).transpose(1, 2));
    const Tensor root = at::addcmul(heads_->one, similarity.sub_(1), group.of(heads_->inverse_r_H11)).clamp_(0, 1);
    const Tensor weight = trim_of(root, heads_->options);  // (9)
    if (!group.flat()) weight.mul_(store.softmask.narrow(2, store.capacity() - 1 - row, keys));
    Tensor sums = group.of(h);
    at::bmm_out(sums, weight, store.v.narrow(1, 0, keys));
  }
}

void ScreeningBlockedState::answer_chunk(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& h) {
  // Keys and queries are rotated already; TanhNorm and the gate follow for all groups together.
  ScreeningOptions options = {heads_->options};
  options.tanh_norm = false;
  options.position = "none";
  const auto as_operator = [](const Tensor& x_HTD) { return x_HTD.transpose(0, 1).unsqueeze(0); };
  for (size_t g = 0; g < stores_.size(); ++g) {
    const Group& group = heads_->groups[g];
    const int64_t past = std::min(position_, group.span - 1), C = q.size(1);
    const bool wraps = position_ + C > stores_[g].capacity();
    const auto stored_and_seen = [&](const Tensor& ring, const Tensor& added) {
      Tensor seen;
      if (wraps) seen = at::cat({ring_rows(ring, position_ - past, past), added}, 1);
      set_ring_rows(ring, position_, added);
      return wraps ? seen : ring_rows(ring, position_ - past, past + C);
    };
    const Tensor seen_k = stored_and_seen(stores_[g].k, group.of(k));
    const Tensor seen_v = stored_and_seen(stores_[g].v, group.of(v));
    const Tensor sums = screening_blocked(as_operator(group.of(q)), as_operator(seen_k), as_operator(seen_v),
                                          group.of(heads_->s_w_H), group.of(heads_->s_r_H), options);
    group.of(h).copy_(sums.squeeze(0).transpose(0, 1));
  }
}

int64_t ScreeningBlockedState::bytes() const {
  int64_t sum = 0;
  for (size_t g = 0; g < stores_.size(); ++g) sum += heads_->bytes(heads_->groups[g], stores_[g].capacity());
  return sum;
}

int64_t ScreeningBlockedState::bytes_after(int64_t tokens) const {
  int64_t sum = 0;
  for (size_t g = 0; g < stores_.size(); ++g) {
    sum += heads_->bytes(heads_->groups[g], capacity_for(g, position_ + tokens));
  }
  return sum;
}

void ScreeningBlockedState::reserve(int64_t tokens) {
  grow(position_ + tokens);
}

ScreeningBlockedState ScreeningBlockedState::fork() const {
  ScreeningBlockedState copy = *this;
  for (Store& store : copy.stores_) {  // the table is never changed
    store.k = store.k.clone();
    store.v = store.v.clone();
  }
  return copy;
}

void ScreeningBlockedState::save(std::ostream& out) const {
  ScreeningState state = heads_->kernel_state();
  std::vector<ScreeningState::HeadRows> rows(heads_->order.size());
  for (size_t g = 0; g < stores_.size(); ++g) {
    const Group& group = heads_->groups[g];
    const Tensor k = stores_[g].k.cpu(), v = stores_[g].v.cpu();
    for (int64_t i = 0; i < group.count; ++i) {
      const int64_t head = heads_->order[group.first + i], count = state.head_row_count(head, position_);
      const auto newest = [&](const Tensor& ring) {
        return ring_rows(ring.narrow(0, i, 1), position_ - count, count).squeeze(0);
      };
      rows[head] = {newest(k), newest(v)};
    }
  }
  state.set_rows(position_, rows);
  state.save(out);
}

void ScreeningBlockedState::load(std::istream& in) {
  ScreeningState state = heads_->kernel_state();
  state.load(in);
  position_ = state.position();
  for (Store& store : stores_) {  // forgets the rows, which may be more
    store.k = store.k.narrow(1, 0, 0).clone();
    store.v = store.v.narrow(1, 0, 0).clone();
  }
  grow(position_);
  for (size_t g = 0; g < stores_.size(); ++g) {
    const Group& group = heads_->groups[g];
    const Tensor k = at::zeros(stores_[g].k.sizes(), at::kFloat), v = at::zeros(stores_[g].v.sizes(), at::kFloat);
    for (int64_t i = 0; i < group.count; ++i) {
      const auto [k_nK, v_nV] = state.head_rows(heads_->order[group.first + i]);
      const int64_t first = position_ - k_nK.size(0);
      set_ring_rows(k.narrow(0, i, 1), first, k_nK.unsqueeze(0));
      set_ring_rows(v.narrow(0, i, 1), first, v_nV.unsqueeze(0));
    }
    stores_[g].k.copy_(k);
    stores_[g].v.copy_(v);
  }
}

}  // namespace tamis::ops
