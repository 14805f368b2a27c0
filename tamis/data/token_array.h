#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tamis::data {

/// A sequence of tokens, on disk or in memory, and the places where its documents begin. All functions may be called
/// from several threads at once.
class TokenArray {
 public:
  virtual ~TokenArray() = default;
  /// For messages: the file or directory.
  virtual std::string name() const = 0;
  virtual int64_t size() const = 0;
  /// Copies tokens [first, first + out.size()), which must exist. Throws ExitCode::kInput when they are damaged.
  virtual void read(int64_t first, std::span<int64_t> out) const = 0;
  /// The positions in (first, last] at which a document begins, in order. Position size() counts when the last document
  /// is complete. Throws like read.
  virtual std::vector<int64_t> document_starts(int64_t first, int64_t last) const = 0;
};

/// Tokens in memory; a document begins after each `end_of_text` (-1: there is one document).
class MemoryTokens : public TokenArray {
 public:
  MemoryTokens(std::string name, std::vector<int32_t> tokens, int64_t end_of_text);

  std::string name() const override { return name_; }
  int64_t size() const override { return static_cast<int64_t>(tokens_.size()); }
  void read(int64_t first, std::span<int64_t> out) const override;
  std::vector<int64_t> document_starts(int64_t first, int64_t last) const override;
  const std::vector<int32_t>& tokens() const { return tokens_; }

 private:
  std::string name_;
  std::vector<int32_t> tokens_;
  int64_t end_of_text_;
};

/// Several arrays, one after the other.
class JoinedTokens : public TokenArray {
 public:
  JoinedTokens(std::string name, std::vector<std::unique_ptr<TokenArray>> parts);

  std::string name() const override { return name_; }
  int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  void read(int64_t first, std::span<int64_t> out) const override;
  std::vector<int64_t> document_starts(int64_t first, int64_t last) const override;

 private:
  size_t part_at(int64_t position) const;
  int64_t begin_of(size_t part) const { return part == 0 ? 0 : ends_[part - 1]; }

  std::string name_;
  std::vector<std::unique_ptr<TokenArray>> parts_;
  std::vector<int64_t> ends_;
};

/// A part of another array.
class TokenSlice : public TokenArray {
 public:
  /// Tokens [first, first + size) of `array`.
  TokenSlice(std::shared_ptr<const TokenArray> array, int64_t first, int64_t size);

  std::string name() const override { return array_->name(); }
  int64_t size() const override { return size_; }
  void read(int64_t first, std::span<int64_t> out) const override { array_->read(first_ + first, out); }
  std::vector<int64_t> document_starts(int64_t first, int64_t last) const override;

 private:
  std::shared_ptr<const TokenArray> array_;
  int64_t first_, size_;
};

}  // namespace tamis::data
