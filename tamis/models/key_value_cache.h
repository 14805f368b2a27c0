#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <iosfwd>
#include <optional>

namespace tamis::models {

/// Keys and values of one sequence that later queries can still see, after position encoding: head by head, in rows
/// padded with zeros to whole vectors (kernels::padded), as the kernels read them. With a window the buffer holds at
/// most twice the window (at least kLeastRows); when it is full, the rows that are still visible move to its front.
class KeyValueCache {
 public:
  /// H heads of `key_dim` and `value_dim` numbers in `dtype`; `window`: how many keys a query sees, its own included.
  KeyValueCache(int64_t heads, int64_t key_dim, int64_t value_dim, std::optional<int64_t> window, at::ScalarType dtype,
                at::Device device);

  static constexpr int64_t kLeastRows = 64;

  /// What the queries of a chunk can see, oldest first, until the next append.
  struct Seen {
    at::Tensor k, v;    // [1, n, H, ...]
    int64_t key_start;  // position of the oldest
  };
  /// Adds the keys and values of the next tokens, [1, C, H, key_dim] and [1, C, H, value_dim].
  Seen append(const at::Tensor& k_1CHK, const at::Tensor& v_1CHV);

  /// Makes room for the next tokens, with some to spare; append() does so too. Throws ExitCode::kRuntime when memory is
  /// short, and leaves the cache unchanged.
  void begin(int64_t tokens);
  /// One token, head by head: after begin(1) every head writes its rows, then end_token() counts the token. CPU,
  /// float32.
  struct Head {
    float *k, *v;                // of the new token, to be written
    const float *keys, *values;  // all that it sees, oldest first, its own last
    int64_t before;              // keys without the new one
  };
  Head head(int64_t head) const;
  void end_token();

  int64_t position() const { return position_; }  // tokens seen
  int64_t bytes() const;
  int64_t bytes_after(int64_t tokens) const;  // after reserve(tokens)
  /// Makes room for exactly this many more tokens; begin() makes room for an eighth more than it needs.
  void reserve(int64_t tokens);

  KeyValueCache fork() const;
  void save(std::ostream& out) const;
  /// Reads what was saved after `position` tokens; throws ExitCode::kInput when the bytes do not fit.
  void load(std::istream& in, int64_t position);

 private:
  at::Tensor rows(int64_t count, int64_t dim, const at::TensorOptions& options) const;
  at::Tensor keys() const { return k_.narrow(1, first_, end_ - first_); }
  at::Tensor values() const { return v_.narrow(1, first_, end_ - first_); }
  int64_t bytes_of_key() const;
  int64_t kept_after(int64_t tokens) const;
  int64_t rows_for(int64_t keys) const;
  int64_t rows_reserved(int64_t tokens) const;
  bool exceeds_window(int64_t tokens) const;
  void make_room(int64_t tokens);
  void move_down(const at::Tensor& x) const;
  void move_to(int64_t rows);
  Seen append_long(const at::Tensor& k, const at::Tensor& v);

  int64_t heads_, key_dim_, value_dim_;
  std::optional<int64_t> window_;
  at::Tensor k_, v_;             // [1, capacity, H, ...], views of [1, H, capacity, padded(...)]
  int64_t first_ = 0, end_ = 0;  // rows in use
  int64_t position_ = 0;
};

}  // namespace tamis::models
