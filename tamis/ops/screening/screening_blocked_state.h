#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tamis/ops/screening/screening.h"
#include "tamis/ops/screening/screening_state.h"

namespace tamis::ops {

/// The blocked form of ScreeningState: the same results up to rounding, in plain torch on any device. Any shapes of
/// Trim and Softmask.
///
/// Keys, normalised and rotated, and normalised values are float32 on the device, in a ring for every group of heads
/// whose windows are within a factor of 4 of each other, or at most 64 tokens. The ring has ceil(w) rows, of the
/// longest window w in the group; heads with infinite windows keep all keys in a store that grows by an eighth. The
/// softmask of each head over the ring is a table.
///
/// A step with a single token copies nothing between the device and the host. A longer chunk is a call of the blocked
/// form of ops::screening for every group.
///
/// As 0 times NaN is NaN, a key or value that is not finite shows in the results of a head until it has left the ring
/// of the group, which may be later than it leaves the window of the head.
///
/// step accepts float32 and half-precision projections on the device of the state. Softmask is taken as 1 for windows
/// of more than 1e11 tokens. Saved states are those of ScreeningState: each class loads what the other has saved.
class ScreeningBlockedState {
 public:
  ScreeningBlockedState(const at::Tensor& s_w_H, const at::Tensor& s_r_H, int64_t key_dim, int64_t value_dim,
                        const ScreeningHeadOptions& options, at::Device device);

  /// Several sequences at once, each at its own position: row b of the tensors belongs to states[b]. q_BCHK, k_BCHK and
  /// v_BCHV: the next C >= 1 positions. Returns [B, C, H, V] in the dtype of v.
  static at::Tensor step(std::span<ScreeningBlockedState* const> states, const at::Tensor& q_BCHK,
                         const at::Tensor& k_BCHK, const at::Tensor& v_BCHV,
                         const std::optional<at::Tensor>& gate_BCHV = std::nullopt);

  int64_t position() const { return position_; }  // tokens seen so far
  int64_t bytes() const;                          // memory of the stores
  /// Memory of the stores after reserve(tokens).
  int64_t bytes_after(int64_t tokens) const;
  /// Makes room for `tokens` more tokens.
  void reserve(int64_t tokens);
  ScreeningBlockedState fork() const;

  /// As ScreeningState.
  void save(std::ostream& out) const;
  void load(std::istream& in);

 private:
  struct Group;
  struct Heads;
  /// The keys and values of a group: position p in row p modulo the capacity, zeros where there is none yet.
  struct Store {
    at::Tensor k, v;      // [heads, capacity, .]
    at::Tensor softmask;  // [heads, 1, 2 capacity - 1], see softmask_table; undefined where it is 1

    int64_t capacity() const { return k.size(1); }
  };

  /// Keys and queries of C positions, h of all of them: [H, C, .], heads in the order of the groups.
  void answer_token(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& h);
  void answer_chunk(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& h);
  void grow(int64_t last);
  int64_t capacity_for(size_t group, int64_t last) const;

  std::shared_ptr<const Heads> heads_;
  std::vector<Store> stores_;  // of every group
  int64_t position_ = 0;
};

}  // namespace tamis::ops
