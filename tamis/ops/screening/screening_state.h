#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>

namespace tamis::ops {

/// What one sequence must remember to continue through the screening tiles of one layer: for every head the newest
/// ceil(w) keys, normalised and rotated, and their normalised values, as float32, in a ring rounded up to whole tiles
/// of 16 keys. A head whose window is infinite keeps all keys in a store that grows by an eighth, in whole tiles.
///
///   ScreeningState state(s_w, s_r, K, V);
///   out = state.step(q, k, v, gate);     // [1, C, H, *]: C >= 1 new positions, chunks of any size
///
/// step appends the chunk's keys and answers its queries through the tiled kernel of ops::screening: full = chunked =
/// token by token to rounding. Memory: bytes(); flat in the number of tokens when all windows are finite.
/// CPU only; float32 or bfloat16 projections. Throws c10::ValueError on shapes that do not fit.
struct ScreeningStateOptions {
  double mipe_threshold = 256.0;        // as ScreeningOptions
  std::optional<double> expand_beyond;  // as ScreeningOptions
  bool tanh_norm = true;                // as ScreeningOptions
  std::string position = "mipe";        // as ScreeningOptions
};

class ScreeningState {
 public:
  using Options = ScreeningStateOptions;

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

  /// One token of one head on raw pointers, for a caller that spreads the heads over threads of its own: nothing is
  /// allocated, nothing locked. Room must have been made by reserve(1). Once every head had its token, `advance`.
  struct HeadToken {
    float* q_K = nullptr;  // projections, as `step` takes them
    float* k_K = nullptr;
    float* v_V = nullptr;
    float* gate_V = nullptr;  // null: none
    float* out_V = nullptr;
  };
  void step_head(int64_t head, const HeadToken& token, float* scratch);
  void advance();
  /// Numbers that step_head wants as scratch memory, for each thread its own.
  static int64_t head_scratch(int64_t key_dim, int64_t value_dim);
  /// Keys that the next token of a head can see.
  int64_t visible_keys(int64_t head) const;

  int64_t position() const;  // tokens seen so far
  int64_t bytes() const;     // memory of the stores
  /// Memory of the stores after reserve(tokens).
  int64_t bytes_after(int64_t tokens) const;
  /// Makes room for `tokens` more at once, and for an eighth beyond. Throws tamis::Error (kRuntime) when memory is
  /// short.
  void reserve(int64_t tokens);
  ScreeningState fork() const;

  /// Writes and reads everything but the parameters, which the constructor got. Throws tamis::Error (kInput) when the
  /// bytes are not a state of these shapes.
  void save(std::ostream& out) const;
  void load(std::istream& in);

 private:
  struct Impl;
  explicit ScreeningState(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tamis::ops
