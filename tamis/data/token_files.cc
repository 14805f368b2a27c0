#include "tamis/data/token_files.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/names.h"
#include "tamis/data/shard.h"

namespace tamis::data {
namespace {

namespace fs = std::filesystem;

enum class TokenType { kUint16, kUint32, kInt32, kInt64 };

int64_t bytes_of(TokenType type) {
  return type == TokenType::kUint16 ? 2 : type == TokenType::kInt64 ? 8 : 4;
}

/// Where the tokens of a file are.
struct Layout {
  TokenType type;
  int64_t offset;
  int64_t tokens;
};

class FileTokens : public TokenArray {
 public:
  FileTokens(const fs::path& file, Layout (*find)(std::string_view, const std::string&), int64_t end_of_text)
      : name_(file.string()), mapped_(file), layout_(find(mapped_.text(), name_)), end_of_text_(end_of_text) {
    const int64_t room = static_cast<int64_t>(mapped_.text().size()) - layout_.offset;
    const bool fits = layout_.tokens >= 0 && layout_.tokens <= room / bytes_of(layout_.type);
    if (!fits || layout_.tokens * bytes_of(layout_.type) != room) {
      fail(ExitCode::kInput,
           "{}: its header says {} tokens of {} bytes, but {} bytes follow; it was cut off or written to", name_,
           layout_.tokens, bytes_of(layout_.type), room);
    }
  }

  std::string name() const override { return name_; }
  int64_t size() const override { return layout_.tokens; }

  void read(int64_t first, std::span<int64_t> out) const override {
    switch (layout_.type) {
      case TokenType::kUint16:
        return copy<uint16_t>(first, out);
      case TokenType::kUint32:
        return copy<uint32_t>(first, out);
      case TokenType::kInt32:
        return copy<int32_t>(first, out);
      case TokenType::kInt64:
        return copy<int64_t>(first, out);
    }
  }

  std::vector<int64_t> document_starts(int64_t first, int64_t last) const override {
    if (end_of_text_ < 0) return {};  // the tokenizer has none: all is one document
    std::vector<int64_t> tokens(std::max<int64_t>(last - first, 0)), starts;
    read(first, tokens);
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] == end_of_text_) starts.push_back(first + static_cast<int64_t>(i) + 1);
    }
    return starts;
  }

 private:
  template <typename T>
  void copy(int64_t first, std::span<int64_t> out) const {
    const char* from = mapped_.text().data() + layout_.offset + first * static_cast<int64_t>(sizeof(T));
    for (int64_t& token : out) {
      T value;
      std::memcpy(&value, from, sizeof(T));  // the data of an .npy file of version 1 may be unaligned
      from += sizeof(T);
      token = static_cast<int64_t>(value);
    }
  }

  std::string name_;
  MappedFile mapped_;
  Layout layout_;
  int64_t end_of_text_;
};

Layout llmc_layout(std::string_view bytes, const std::string& name) {
  constexpr int32_t kUint16Magic = 20240520, kUint32Magic = 20240801;
  constexpr int64_t kHeaderBytes = 256 * sizeof(int32_t);
  int32_t header[3] = {};
  if (bytes.size() >= kHeaderBytes) std::memcpy(header, bytes.data(), sizeof(header));
  if (header[0] != kUint16Magic && header[0] != kUint32Magic) {
    fail(ExitCode::kInput,
         "{}: is not a shard of llm.c: expected 1024 bytes that begin with the int32 {} or {}, but {}", name,
         kUint16Magic, kUint32Magic,
         bytes.size() < kHeaderBytes ? fmt::format("it has {} bytes", bytes.size())
                                     : fmt::format("found {}", header[0]));
  }
  const bool known = header[1] == 1 || (header[0] == kUint32Magic && header[1] == 7);
  if (!known) fail(ExitCode::kInput, "{}: has version {} of llm.c's format; expected 1", name, header[1]);
  return {header[0] == kUint16Magic ? TokenType::kUint16 : TokenType::kUint32, kHeaderBytes, header[2]};
}

/// The value of `key` in the dictionary of an .npy header, up to the comma or bracket that ends it.
std::string_view npy_value(std::string_view header, std::string_view key) {
  const size_t at = header.find("'" + std::string(key) + "':");
  if (at == header.npos) return "";
  std::string_view value = header.substr(at + key.size() + 3);
  value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
  const size_t end = value.starts_with('(') ? value.find(')') + 1 : value.find(',');
  return value.substr(0, end == 0 ? value.npos : end);
}

std::optional<TokenType> npy_type(std::string_view name) {
  if (name == "'<u2'") return TokenType::kUint16;
  if (name == "'<u4'") return TokenType::kUint32;
  if (name == "'<i4'") return TokenType::kInt32;
  if (name == "'<i8'") return TokenType::kInt64;
  return std::nullopt;
}

/// The format of NumPy's `numpy.lib.format`, versions 1 to 3.
Layout npy_layout(std::string_view bytes, const std::string& name) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  const bool is_npy = bytes.size() >= 12 && bytes.starts_with(kMagic) && bytes[6] >= 1 && bytes[6] <= 3;
  if (!is_npy) fail(ExitCode::kInput, "{}: is not a .npy file of version 1 to 3", name);
  uint32_t size = 0;
  const size_t before = bytes[6] == 1 ? 10 : 12;
  std::memcpy(&size, bytes.data() + 8, before - 8);
  if (bytes.size() - before < size) fail(ExitCode::kInput, "{}: its header is cut off", name);
  const std::string_view header = bytes.substr(before, size);
  const std::string_view type_name = npy_value(header, "descr"), shape = npy_value(header, "shape");
  const auto type = npy_type(type_name);
  if (!type) {
    fail(ExitCode::kInput, "{}: expected tokens of type '<u2', '<u4', '<i4' or '<i8', but the array has {}", name,
         quoted_name(type_name));
  }
  int64_t tokens = -1;
  const auto [end, error] =
      std::from_chars(shape.data() + (shape.empty() ? 0 : 1), shape.data() + shape.size(), tokens);
  const std::string_view rest = shape.substr(end - shape.data());
  if (error != std::errc() || (rest != ",)" && rest != ")") || !shape.starts_with('(')) {
    fail(ExitCode::kInput, "{}: expected an array of one dimension, but its shape is {}", name, quoted_name(shape));
  }
  return {*type, static_cast<int64_t>(before + size), tokens};
}

}  // namespace

bool is_token_file(const fs::path& file) {
  return file.extension() == ".bin" || file.extension() == ".npy";
}

std::unique_ptr<TokenArray> open_token_file(const fs::path& file, int64_t end_of_text) {
  return std::make_unique<FileTokens>(file, file.extension() == ".npy" ? npy_layout : llmc_layout, end_of_text);
}

uint64_t token_file_digest(const fs::path& file) {
  constexpr size_t kBlocks = 16, kBlockBytes = size_t{1} << 20;
  const MappedFile mapped(file);
  const std::string_view bytes = mapped.text();
  if (bytes.size() <= kBlocks * kBlockBytes) return fast_checksum(bytes);
  std::string sums = std::to_string(bytes.size());
  for (size_t i = 0; i < kBlocks; ++i) {
    const size_t at = (bytes.size() - kBlockBytes) / (kBlocks - 1) * i;
    sums += fmt::format(" {:x}", fast_checksum(bytes.substr(at, kBlockBytes)));
  }
  return fast_checksum(sums);
}

}  // namespace tamis::data
