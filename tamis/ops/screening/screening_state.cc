#include "tamis/ops/screening/screening_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <istream>
#include <limits>
#include <optional>
#include <ostream>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/memory.h"
#include "tamis/ops/parallel.h"
#include "tamis/ops/rows.h"
#include "tamis/ops/scratch.h"
#include "tamis/ops/screening/screening_heads.h"
#include "tamis/ops/screening/screening_index.h"
#include "tamis/ops/screening/screening_kernel.h"
#include "tamis/ops/screening/screening_state_checks.h"
#include "tamis/ops/screening/screening_token_kernel.h"
#include "tamis/ops/window.h"

namespace tamis::ops {
namespace {

using at::Tensor;
using kernels::padded;

/// One head's store. Below `final_capacity` keys are only appended; then the oldest are overwritten.
struct HeadStore {
  double s_w = 0, s_r = 0;
  std::optional<double> expand_beyond;
  int64_t span = 0;  // ceil(w), or kUnbounded
  int64_t block = kernels::kBlockQueries;
  int64_t final_capacity = 0;
  int64_t capacity = 0;
  PreparedHead<float> head;
  std::vector<float> tiles, values;
  std::vector<uint8_t> ready;
  StoredIndex index;  // of a head that keeps all keys

  int64_t bytes() const {
    return static_cast<int64_t>((tiles.capacity() + values.capacity() + head.softmask.capacity()) * sizeof(float) +
                                ready.capacity()) +
           index.bytes();
  }
};

template <typename T>
void write_numbers(std::ostream& out, const T* numbers, size_t count) {
  out.write(reinterpret_cast<const char*>(numbers), static_cast<std::streamsize>(count * sizeof(T)));
}

template <typename T>
void read_numbers(std::istream& in, T* numbers, size_t count) {
  in.read(reinterpret_cast<char*>(numbers), static_cast<std::streamsize>(count * sizeof(T)));
  if (!in) fail(ExitCode::kInput, "screening state: ends too early; was it saved completely?");
}

constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max() / 2;  // capacity of an infinite window
constexpr std::array<char, 8> kMagic = {'T', 'A', 'M', 'I', 'S', 'S', 'C', '2'};

}  // namespace

struct ScreeningState::Impl {
  int64_t key_dim = 0, value_dim = 0;
  ScreeningHeadOptions options;
  int64_t position = 0;
  std::vector<HeadStore> heads;

  /// Removes the keys of a head and keeps its constants.
  static void clear(HeadStore& store) {
    store.capacity = 0;
    store.tiles = {};
    store.values = {};
    store.ready = {};
    store.index = {};
  }

  /// Of the key at a position in the tiles; its numbers are kTileKeys apart.
  int64_t key_index(const HeadStore& store, int64_t at) const {
    const int64_t row = at % store.capacity, tile = row / kernels::kTileKeys;
    return tile * kernels::kTileKeys * key_dim + row % kernels::kTileKeys;
  }
  int64_t value_index(const HeadStore& store, int64_t at) const { return at % store.capacity * padded(value_dim); }

  /// Capacity of a head that holds the keys up to position `last`: an eighth more, so that a head that grows by one
  /// token at a time copies each key only a few times.
  static int64_t capacity_for(const HeadStore& store, int64_t last) {
    if (store.capacity == store.final_capacity || last <= store.capacity) return store.capacity;
    return std::min(store.final_capacity, padded(std::max(last + last / 8, int64_t{64})));
  }

  /// Entries of the softmask table of a head with `capacity` keys; 0: no table.
  static int64_t softmask_size(const HeadStore& store, int64_t capacity) {
    const double window = expanded_window(window_tokens(store.s_w), store.expand_beyond);
    const int64_t span = visible_span(window, capacity);
    return needs_softmask_table<float>(window, span) ? span + 2 * kernels::kMaskPadding : 0;
  }

  /// Makes room for the keys up to position `last`. If it throws, the capacity is as before.
  void grow(HeadStore& store, int64_t last) const {
    const int64_t capacity = capacity_for(store, last);
    if (capacity == store.capacity) return;
    const double bytes = static_cast<double>(capacity) * static_cast<double>(bytes_per_key()) +
                         static_cast<double>(index_bytes(store, capacity));
    if (bytes > kWorthAsking) {
      require_memory(bytes, fmt::format("screening state: a head of {} tokens", last), "use a shorter text");
    }
    const auto resize = [](auto& vector, int64_t size, auto value) {
      vector.reserve(static_cast<size_t>(size));  // exactly: resize alone may take twice as much
      vector.resize(static_cast<size_t>(size), value);
    };
    resize(store.tiles, capacity * key_dim, 0.0f);
    resize(store.values, capacity * padded(value_dim), 0.0f);
    resize(store.ready, capacity, uint8_t{1});
    if (store.final_capacity == kUnbounded) store.index.reserve(capacity, key_dim);
    store.head = prepare_head<float>(store.s_w, store.s_r, key_dim, value_dim, capacity, options, /*derivative=*/false);
    store.capacity = capacity;
  }

  int64_t bytes_per_key() const { return (key_dim + padded(value_dim)) * static_cast<int64_t>(sizeof(float)) + 1; }

  /// Bytes of a head's index at a capacity.
  int64_t index_bytes(const HeadStore& store, int64_t capacity) const {
    return store.final_capacity == kUnbounded ? StoredIndex::bytes_for(capacity, key_dim) : 0;
  }

  /// Keys of a head that are saved: whole tiles up to `position`, or the whole ring.
  int64_t saved_keys(const HeadStore& store) const { return std::min(store.final_capacity, padded(position)); }

  /// A pass of a head over the next `chunk` positions, without its rows.
  kernels::ScreeningPass<float> pass_of(HeadStore& store, int64_t chunk, float* scratch) const {
    kernels::ScreeningPass<float> pass;
    pass.head = store.head.constants;
    pass.head.softmask = store.head.softmask.empty() ? nullptr : store.head.softmask.data();
    pass.head.turns = store.head.turns.empty() ? nullptr : store.head.turns.data();
    pass.ring = {store.capacity, store.tiles.data(), store.values.data(), store.ready.data(), nullptr};
    pass.query_origin = pass.key_origin = pass.first = pass.packed = position;
    pass.last = position + chunk;
    pass.block = std::min(store.block, chunk);
    pass.store_all_values = true;
    pass.scratch = scratch;
    return pass;
  }

  /// Runs the pass of head `h` over a chunk, row `b` of the tensors.
  void run_pass(int64_t b, int64_t h, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate,
                const Tensor& out, ScratchMemory<float>& memory) {
    HeadStore& store = heads[h];
    const int64_t chunk = q.size(1);
    grow(store, position + chunk);
    auto pass = pass_of(store, chunk, memory.take(kernels::forward_scratch(key_dim, value_dim)));
    pass.q = rows_of(q, b, h);
    pass.k = rows_of(k, b, h);
    pass.v = rows_of(v, b, h);
    if (gate.defined()) pass.gate = rows_of(gate, b, h);
    pass.out = rows_of(out, b, h);
    pass.index = store.index.bind(memory);
    kernels::screening_forward(pass);
  }

  /// Pairs of a chunk over all heads, which decide whether it runs on several threads.
  int64_t pairs(int64_t chunk) const {
    int64_t sum = 0;
    for (const HeadStore& store : heads) sum += chunk * (std::min(position, store.final_capacity) + chunk + 64);
    return sum;
  }
};

ScreeningState::ScreeningState(const Tensor& s_w_H, const Tensor& s_r_H, int64_t key_dim, int64_t value_dim,
                               const Options& options)
    : impl_(std::make_unique<Impl>()) {
  TORCH_CHECK_VALUE(s_w_H.dim() == 1 && s_w_H.sizes() == s_r_H.sizes(),
                    "screening state: s_w and s_r must hold one number per head, but have the shapes ", s_w_H.sizes(),
                    " and ", s_r_H.sizes());
  TORCH_CHECK_VALUE(key_dim >= 2 && value_dim >= 1, "screening state: K must be at least 2 and V at least 1, but are ",
                    key_dim, " and ", value_dim);
  TORCH_CHECK_VALUE(options.has_paper_shapes(), "screening state: other shapes of Trim and Softmask need the state in ",
                    "plain torch, ScreeningBlockedState");
  impl_->key_dim = key_dim;
  impl_->value_dim = value_dim;
  impl_->options = options;
  const Tensor s_w = s_w_H.detach().cpu().to(at::kDouble).contiguous();
  const Tensor s_r = s_r_H.detach().cpu().to(at::kDouble).contiguous();
  for (int64_t h = 0; h < s_w.size(0); ++h) {
    HeadStore store;
    store.s_w = s_w.const_data_ptr<double>()[h];
    store.s_r = s_r.const_data_ptr<double>()[h];
    store.expand_beyond = options.expand_beyond;
    const int64_t seen = visible_span(expanded_window(window_tokens(store.s_w), options.expand_beyond), kLongestSpan);
    store.span = seen < kLongestSpan ? seen : kUnbounded;
    store.block = block_for_span(store.span);
    store.final_capacity = store.span < kUnbounded ? kernels::ring_capacity(store.span, store.block) : kUnbounded;
    impl_->heads.push_back(std::move(store));
  }
}

ScreeningState::ScreeningState(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ScreeningState::~ScreeningState() = default;
ScreeningState::ScreeningState(ScreeningState&&) noexcept = default;
ScreeningState& ScreeningState::operator=(ScreeningState&&) noexcept = default;

Tensor ScreeningState::step(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& gate) {
  ScreeningState* self = this;
  return step({&self, 1}, q, k, v, gate);
}

Tensor ScreeningState::step(std::span<ScreeningState* const> states, const Tensor& q_in, const Tensor& k_in,
                            const Tensor& v_in, const std::optional<Tensor>& gate_in) {
  const auto B = static_cast<int64_t>(states.size());
  TORCH_CHECK_VALUE(B > 0, "screening state: step needs at least one state");
  const int64_t H = static_cast<int64_t>(states[0]->impl_->heads.size());
  const int64_t K = states[0]->impl_->key_dim, V = states[0]->impl_->value_dim;
  const auto check_dtype = [&](const char* name, const Tensor& x) {
    TORCH_CHECK_VALUE(x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16) &&
                          x.scalar_type() == q_in.scalar_type(),
                      "screening state: ", name, " must be float32 or bfloat16 on the CPU, the same for all, but is ",
                      x.scalar_type(), " on ", x.device());
  };
  const int64_t C = check_state_step({B, H, K, V}, q_in, k_in, v_in, gate_in, check_dtype);
  for (const ScreeningState* state : states) {
    TORCH_CHECK_VALUE(static_cast<int64_t>(state->impl_->heads.size()) == H && state->impl_->key_dim == K &&
                          state->impl_->value_dim == V,
                      "screening state: the states of one step must be of the same layer");
  }

  for (size_t i = 1; i < states.size(); ++i) {
    TORCH_CHECK_VALUE(std::find(states.begin(), states.begin() + i, states[i]) == states.begin() + i,
                      "screening state: a state may occur only once in a step, but state ", i, " is there twice");
  }

  const Tensor q = with_adjacent_rows(q_in), k = with_adjacent_rows(k_in), v = with_adjacent_rows(v_in);
  const Tensor gate = gate_in ? with_adjacent_rows(*gate_in) : Tensor();
  Tensor out = at::empty({B, C, H, V}, v.options());
  int64_t pairs = 0;
  for (const ScreeningState* state : states) pairs += state->impl_->pairs(C);
  const auto work = [&](int64_t item) {
    states[item / H]->impl_->run_pass(item / H, item % H, q, k, v, gate, out, thread_memory<float>());
  };
  constexpr int64_t kWorthThreads = 100'000;  // pairs; with fewer, starting threads costs more than it saves
  if (pairs < kWorthThreads) {
    serial_items(B * H, work);
  } else {
    parallel_items(B * H, work);
  }
  for (ScreeningState* state : states) state->impl_->position += C;
  return out;
}

void ScreeningState::step_head(int64_t head, const HeadToken& token, float* scratch) {
  HeadStore& store = impl_->heads[head];
  auto pass = impl_->pass_of(store, 1, scratch);
  const auto row = [](float* numbers) { return kernels::Rows{numbers, 0, kernels::Storage::kFloat32}; };
  pass.q = row(token.q_K);
  pass.k = row(token.k_K);
  pass.v = row(token.v_V);
  pass.gate = row(token.gate_V);
  pass.out = row(token.out_V);
  if (store.final_capacity < kUnbounded) return kernels::screening_token(pass);
  // An infinite window: the pass with exact skipping.
  ScratchMemory<float>& memory = thread_memory<float>();
  pass.scratch = memory.take(kernels::forward_scratch(impl_->key_dim, impl_->value_dim));
  pass.index = store.index.bind(memory);
  kernels::screening_forward(pass);
}

void ScreeningState::advance() {
  ++impl_->position;
}

int64_t ScreeningState::head_scratch(int64_t key_dim, int64_t value_dim) {
  return kernels::token_scratch(key_dim, value_dim);
}

int64_t ScreeningState::visible_keys(int64_t head) const {
  return std::min(impl_->position + 1, impl_->heads[head].head.constants.span);
}

int64_t ScreeningState::position() const {
  return impl_->position;
}

int64_t ScreeningState::bytes() const {
  int64_t sum = 0;
  for (const HeadStore& store : impl_->heads) sum += store.bytes();
  return sum;
}

int64_t ScreeningState::bytes_after(int64_t tokens) const {
  int64_t sum = 0;
  for (const HeadStore& store : impl_->heads) {
    const int64_t capacity = Impl::capacity_for(store, impl_->position + tokens);
    sum += store.bytes();
    if (capacity == store.capacity) continue;
    const int64_t table = Impl::softmask_size(store, capacity) - static_cast<int64_t>(store.head.softmask.capacity());
    sum += impl_->index_bytes(store, capacity) - store.index.bytes();
    sum += (capacity - store.capacity) * impl_->bytes_per_key() + table * static_cast<int64_t>(sizeof(float));
  }
  return sum;
}

void ScreeningState::reserve(int64_t tokens) {
  for (HeadStore& store : impl_->heads) impl_->grow(store, impl_->position + tokens);
}

ScreeningState ScreeningState::fork() const {
  return ScreeningState(std::make_unique<Impl>(*impl_));
}

void ScreeningState::save(std::ostream& out) const {
  write_numbers(out, kMagic.data(), kMagic.size());
  const std::array<int64_t, 4> sizes = {static_cast<int64_t>(impl_->heads.size()), impl_->key_dim, impl_->value_dim,
                                        impl_->position};
  write_numbers(out, sizes.data(), sizes.size());
  for (const HeadStore& store : impl_->heads) {
    const int64_t keys = impl_->saved_keys(store);
    write_numbers(out, &keys, 1);
    write_numbers(out, store.tiles.data(), static_cast<size_t>(keys * impl_->key_dim));
    write_numbers(out, store.values.data(), static_cast<size_t>(keys * padded(impl_->value_dim)));
  }
}

void ScreeningState::load(std::istream& in) {
  std::array<char, 8> magic{};
  read_numbers(in, magic.data(), magic.size());
  if (magic != kMagic) fail(ExitCode::kInput, "screening state: these bytes are not a saved screening state");
  std::array<int64_t, 4> sizes{};
  read_numbers(in, sizes.data(), sizes.size());
  const std::array<int64_t, 3> expected = {static_cast<int64_t>(impl_->heads.size()), impl_->key_dim, impl_->value_dim};
  if (!std::equal(expected.begin(), expected.end(), sizes.begin())) {
    fail(ExitCode::kInput,
         "screening state: expected {} heads of K {} and V {}, but the bytes hold {} heads of K {} and V {}",
         expected[0], expected[1], expected[2], sizes[0], sizes[1], sizes[2]);
  }
  if (sizes[3] < 0 || sizes[3] > kUnbounded / 2) {
    fail(ExitCode::kInput, "screening state: no sequence has {} tokens; are these bytes damaged?", sizes[3]);
  }
  Impl loaded = *impl_;  // so that damaged bytes change nothing
  loaded.position = sizes[3];
  for (HeadStore& store : loaded.heads) {
    Impl::clear(store);
    int64_t keys = 0;
    read_numbers(in, &keys, 1);
    const int64_t expected_keys = loaded.saved_keys(store);
    if (keys != expected_keys) {
      fail(ExitCode::kInput, "screening state: after {} tokens a head holds {} keys, but the bytes say {}",
           loaded.position, expected_keys, keys);
    }
    loaded.grow(store, keys);
    read_numbers(in, store.tiles.data(), static_cast<size_t>(keys * loaded.key_dim));
    read_numbers(in, store.values.data(), static_cast<size_t>(keys * padded(loaded.value_dim)));
  }
  *impl_ = std::move(loaded);
}

int64_t ScreeningState::head_row_count(int64_t head, int64_t position) const {
  return std::min(position, impl_->heads[head].span - 1);
}

ScreeningState::HeadRows ScreeningState::head_rows(int64_t head) const {
  const HeadStore& store = impl_->heads[head];
  const int64_t count = head_row_count(head, impl_->position), K = impl_->key_dim, V = impl_->value_dim;
  const HeadRows rows = {at::empty({count, K}, at::kFloat), at::empty({count, V}, at::kFloat)};
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = impl_->position - count + i;
    const float* const key = store.tiles.data() + impl_->key_index(store, at);
    for (int64_t d = 0; d < K; ++d) rows.k_nK.data_ptr<float>()[i * K + d] = key[d * kernels::kTileKeys];
    std::copy_n(store.values.data() + impl_->value_index(store, at), V, rows.v_nV.data_ptr<float>() + i * V);
  }
  return rows;
}

void ScreeningState::set_rows(int64_t position, std::span<const HeadRows> heads) {
  TAMIS_ASSERT(heads.size() == impl_->heads.size());
  const int64_t K = impl_->key_dim, V = impl_->value_dim;
  impl_->position = position;
  for (size_t h = 0; h < heads.size(); ++h) {
    HeadStore& store = impl_->heads[h];
    Impl::clear(store);
    impl_->grow(store, impl_->saved_keys(store));
    const Tensor k = heads[h].k_nK.contiguous(), v = heads[h].v_nV.contiguous();
    const int64_t count = k.size(0);
    TAMIS_ASSERT(count == head_row_count(static_cast<int64_t>(h), position));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = position - count + i;
      float* const key = store.tiles.data() + impl_->key_index(store, at);
      for (int64_t d = 0; d < K; ++d) key[d * kernels::kTileKeys] = k.const_data_ptr<float>()[i * K + d];
      std::copy_n(v.const_data_ptr<float>() + i * V, V, store.values.data() + impl_->value_index(store, at));
    }
  }
}

}  // namespace tamis::ops
