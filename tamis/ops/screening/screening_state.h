#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>

#include "tamis/ops/screening/screening.h"

namespace tamis::ops {

/// What one sequence keeps to continue through the screening heads of one layer: of every head the newest ceil(w) keys,
/// normalised and rotated, and their normalised values, in float32, in a ring rounded up to whole tiles of 16 keys. A
/// head with an infinite window keeps all keys in a store that grows by an eighth, in whole tiles.
///
///   ScreeningState state(s_w, s_r, K, V);
///   out = state.step(q, k, v, gate);     // [1, C, H, *]: C >= 1 new positions, chunks of any size
///
/// step appends the chunk's keys and answers its queries by the pass of ops::screening; step_head, for one token, has a
/// pass of its own over the same functions. Full, chunked and token-by-token results are equal up to rounding. Memory:
/// bytes(); it does not grow with the number of tokens if all windows are finite.
/// CPU only; float32 or bfloat16 projections; the paper's shapes of Trim and Softmask. Throws c10::ValueError on shapes
/// that do not fit.
class ScreeningState {
 public:
  using Options = ScreeningHeadOptions;

  ScreeningState(const at::Tensor& s_w_H, const at::Tensor& s_r_H, int64_t key_dim, int64_t value_dim,
                 const Options& options = {});
  ~ScreeningState();
  ScreeningState(ScreeningState&&) noexcept;
  ScreeningState& operator=(ScreeningState&&) noexcept;

  /// q_1CHK, k_1CHK, v_1CHV: the next C positions. Returns [1, C, H, V] in the dtype of v.
  at::Tensor step(const at::Tensor& q_1CHK, const at::Tensor& k_1CHK, const at::Tensor& v_1CHV,
                  const std::optional<at::Tensor>& gate_1CHV = std::nullopt);

  /// Several sequences at once, each at its own position: row b of the tensors belongs to states[b].
  static at::Tensor step(std::span<ScreeningState* const> states, const at::Tensor& q_BCHK, const at::Tensor& k_BCHK,
                         const at::Tensor& v_BCHV, const std::optional<at::Tensor>& gate_BCHV = std::nullopt);

  /// One token of one head on raw pointers, for a caller that distributes the heads over its own threads: it neither
  /// allocates nor locks. reserve(1) must have made room. Call advance() when every head has had its token.
  struct HeadToken {
    float* q_K = nullptr;  // projections, as `step` takes them
    float* k_K = nullptr;
    float* v_V = nullptr;
    float* gate_V = nullptr;  // null: none
    float* out_V = nullptr;
  };
  void step_head(int64_t head, const HeadToken& token, float* scratch);
  void advance();
  /// Numbers of scratch memory for step_head; each thread has its own.
  static int64_t head_scratch(int64_t key_dim, int64_t value_dim);
  /// Keys that the next token of a head can see.
  int64_t visible_keys(int64_t head) const;

  int64_t position() const;  // tokens seen so far
  int64_t bytes() const;     // memory of the stores
  /// Memory of the stores after reserve(tokens).
  int64_t bytes_after(int64_t tokens) const;
  /// Makes room for `tokens` more tokens and an eighth beyond. Throws tamis::Error (kRuntime) if memory is short.
  void reserve(int64_t tokens);
  ScreeningState fork() const;

  /// Writes and reads everything but the parameters given to the constructor. Throws tamis::Error (kInput) if the bytes
  /// are not a state of these shapes.
  void save(std::ostream& out) const;
  void load(std::istream& in);

  /// Keys, normalised and rotated, and normalised values of a head, oldest first: float32 on the CPU.
  struct HeadRows {
    at::Tensor k_nK, v_nV;
  };
  /// What the next token of a head sees of the past: the newest min(position(), ceil(w) - 1).
  HeadRows head_rows(int64_t head) const;
  /// Makes this the state after `position` tokens, of which head h sees the rows heads[h], as head_rows gives them.
  void set_rows(int64_t position, std::span<const HeadRows> heads);
  /// Rows that head_rows gives after this many tokens.
  int64_t head_row_count(int64_t head, int64_t position) const;

 private:
  struct Impl;
  explicit ScreeningState(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tamis::ops
