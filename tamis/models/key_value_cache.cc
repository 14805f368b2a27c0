#include "tamis/models/key_value_cache.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <istream>
#include <ostream>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/memory.h"
#include "tamis/kernels/rows.h"

namespace tamis::models {

using at::Tensor;

KeyValueCache::KeyValueCache(int64_t heads, int64_t key_dim, int64_t value_dim, std::optional<int64_t> window,
                             at::ScalarType dtype, at::Device device)
    : heads_(heads),
      key_dim_(key_dim),
      value_dim_(value_dim),
      window_(window),
      k_(rows(0, key_dim, at::TensorOptions(device).dtype(dtype))),
      v_(rows(0, value_dim, at::TensorOptions(device).dtype(dtype))) {}

/// A buffer of `count` rows for every head: [1, count, H, dim].
Tensor KeyValueCache::rows(int64_t count, int64_t dim, const at::TensorOptions& options) const {
  const int64_t width = kernels::padded(dim);
  const Tensor all = at::empty({1, heads_, count, width}, options);
  if (width > dim) all.narrow(3, dim, width - dim).zero_();
  return all.narrow(3, 0, dim).transpose(1, 2);
}

/// Keys to keep when `tokens` more are added: the oldest of the new queries sees window - 1 keys before its own.
int64_t KeyValueCache::kept_after(int64_t tokens) const {
  const int64_t kept = end_ - first_;
  return (window_ ? std::min(kept, *window_ - 1) : kept) + tokens;
}

/// Rows to allocate for `keys` keys. With a window twice as many, so that the kept keys are moved rarely; otherwise an
/// eighth more, so that growing one token at a time stays cheap and wastes little.
int64_t KeyValueCache::rows_for(int64_t keys) const {
  if (!window_) return keys + std::max(keys / 8, kLeastRows);
  return std::min(std::max(2 * keys, kLeastRows), std::max(2 * *window_, kLeastRows));
}

/// Whether a chunk is longer than the buffer of a window.
bool KeyValueCache::exceeds_window(int64_t tokens) const {
  return window_ && kept_after(tokens) > rows_for(kept_after(tokens));
}

void KeyValueCache::make_room(int64_t tokens) {
  if (window_) first_ = std::max(first_, end_ - (*window_ - 1));
  const int64_t capacity = k_.size(1), kept = end_ - first_;
  if (end_ + tokens <= capacity) return;
  if (kept + tokens <= capacity && first_ >= kept) {  // source and destination do not overlap
    move_down(k_);
    move_down(v_);
    first_ = 0;
    end_ = kept;
  } else {
    move_to(rows_for(kept + tokens));
  }
}

/// Moves the kept rows of every head to the front.
void KeyValueCache::move_down(const Tensor& x) const {
  const int64_t kept = end_ - first_;
  if (!x.is_cpu()) {
    x.narrow(1, 0, kept).copy_(x.narrow(1, first_, kept));
    return;
  }
  const auto row_bytes = x.stride(1) * static_cast<int64_t>(x.element_size());
  for (int64_t head = 0; head < heads_; ++head) {
    auto* const rows = static_cast<std::byte*>(x.mutable_data_ptr()) + head * x.stride(2) * x.element_size();
    std::memcpy(rows, rows + first_ * row_bytes, static_cast<size_t>(kept * row_bytes));
  }
}

/// Moves the kept rows into new buffers of `rows` rows.
void KeyValueCache::move_to(int64_t rows) {
  const auto bytes = static_cast<double>(rows * bytes_of_key());
  if (bytes > kWorthAsking) {
    require_memory(bytes, fmt::format("the keys and values of {} tokens", rows), "use a shorter text");
  }
  const int64_t kept = end_ - first_;
  const auto moved = [&](const Tensor& old, const Tensor& used) {
    const Tensor other = this->rows(rows, old.size(3), old.options());
    other.narrow(1, 0, kept).copy_(used);
    return other;
  };
  const Tensor k = moved(k_, keys());
  v_ = moved(v_, values());
  k_ = k;
  first_ = 0;
  end_ = kept;
}

/// With a window the buffer is reused and never grows beyond this.
int64_t KeyValueCache::rows_reserved(int64_t tokens) const {
  const int64_t rows = std::max(kept_after(tokens), kLeastRows);
  return window_ ? std::min(rows, rows_for(*window_)) : rows;
}

void KeyValueCache::reserve(int64_t tokens) {
  const int64_t rows = rows_reserved(tokens);
  if (rows > k_.size(1)) move_to(std::max(rows, end_ - first_));
}

KeyValueCache::Seen KeyValueCache::append(const Tensor& k, const Tensor& v) {
  const int64_t tokens = k.size(1);
  if (exceeds_window(tokens)) return append_long(k, v);
  make_room(tokens);
  k_.narrow(1, end_, tokens).copy_(k);
  v_.narrow(1, end_, tokens).copy_(v);
  end_ += tokens;
  position_ += tokens;
  return {keys(), values(), position_ - (end_ - first_)};
}

void KeyValueCache::begin(int64_t tokens) {
  if (!exceeds_window(tokens)) make_room(tokens);
}

KeyValueCache::Head KeyValueCache::head(int64_t head) const {
  const auto row = [&](const Tensor& x, int64_t at) {
    return x.mutable_data_ptr<float>() + head * x.stride(2) + at * x.stride(1);
  };
  return {row(k_, end_), row(v_, end_), row(k_, first_), row(v_, first_), end_ - first_};
}

void KeyValueCache::end_token() {
  ++end_;
  ++position_;
}

/// Appends a chunk that is longer than the window's buffer: its queries see all of it, and only its end is kept.
KeyValueCache::Seen KeyValueCache::append_long(const Tensor& k, const Tensor& v) {
  const int64_t kept = kept_after(0), last = std::min(kept + k.size(1), *window_ - 1);
  const auto whole = [&](const Tensor& old, const Tensor& added) {
    return at::cat({old.narrow(1, old.size(1) - kept, kept), added.to(old.scalar_type())}, 1);
  };
  const Seen seen = {whole(keys(), k), whole(values(), v), position_ - kept};
  const auto ends = [&](const Tensor& old, const Tensor& seen_rows) {
    const Tensor buffer = this->rows(rows_for(*window_), old.size(3), old.options());
    buffer.narrow(1, 0, last).copy_(seen_rows.narrow(1, seen_rows.size(1) - last, last));
    return buffer;
  };
  const Tensor k_end = ends(k_, seen.k);
  v_ = ends(v_, seen.v);
  k_ = k_end;
  first_ = 0;
  end_ = last;
  position_ += k.size(1);
  return seen;
}

int64_t KeyValueCache::bytes_of_key() const {
  return heads_ * (kernels::padded(key_dim_) + kernels::padded(value_dim_)) * static_cast<int64_t>(k_.element_size());
}

int64_t KeyValueCache::bytes() const {
  return k_.size(1) * bytes_of_key();
}

int64_t KeyValueCache::bytes_after(int64_t tokens) const {
  return std::max(bytes(), rows_reserved(tokens) * bytes_of_key());
}

KeyValueCache KeyValueCache::fork() const {
  KeyValueCache copy = *this;
  copy.move_to(end_ - first_);
  return copy;
}

void KeyValueCache::save(std::ostream& out) const {
  const int64_t kept = kept_after(0);
  const std::array<int64_t, 2> numbers = {position_, kept};
  out.write(reinterpret_cast<const char*>(numbers.data()), sizeof(numbers));
  for (const Tensor& x : {keys(), values()}) {
    const Tensor plain = x.narrow(1, x.size(1) - kept, kept).cpu().contiguous();
    out.write(static_cast<const char*>(plain.const_data_ptr()), static_cast<std::streamsize>(plain.nbytes()));
  }
}

void KeyValueCache::load(std::istream& in, int64_t expected_position) {
  std::array<int64_t, 2> numbers{};
  in.read(reinterpret_cast<char*>(numbers.data()), sizeof(numbers));
  const int64_t position = numbers[0], kept = numbers[1];
  if (!in || position != expected_position || kept != (window_ ? std::min(position, *window_ - 1) : position)) {
    fail(ExitCode::kInput, "decoding state: its keys are damaged: it has {} of {} tokens, after {}", kept, position,
         expected_position);
  }
  const auto read = [&](const Tensor& like) {
    // In pieces: a damaged count must not allocate more memory than the file has bytes.
    constexpr int64_t kPiece = 4096;
    std::vector<Tensor> pieces;
    for (int64_t first = 0; first < kept; first += kPiece) {
      const Tensor piece =
          at::empty({1, std::min(kPiece, kept - first), heads_, like.size(3)}, like.options().device(at::kCPU));
      in.read(static_cast<char*>(piece.mutable_data_ptr()), static_cast<std::streamsize>(piece.nbytes()));
      if (!in) fail(ExitCode::kInput, "decoding state: ends in the middle of its keys");
      pieces.push_back(piece);
    }
    const Tensor own = rows(kept, like.size(3), like.options());
    for (size_t i = 0; i < pieces.size(); ++i) {
      own.narrow(1, static_cast<int64_t>(i) * kPiece, pieces[i].size(1)).copy_(pieces[i]);
    }
    return own;
  };
  k_ = read(k_);
  v_ = read(v_);
  first_ = 0;
  end_ = kept;
  position_ = position;
}

}  // namespace tamis::models
