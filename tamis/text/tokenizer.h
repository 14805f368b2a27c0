#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tamis::text {

/// Text to token ids and back.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string name() const = 0;
  virtual int64_t vocab_size() const = 0;
  /// Any bytes are accepted, valid UTF-8 or not, where the tokenizer can represent them; else ExitCode::kInput.
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  /// The bytes of the ids, special tokens as their names. Throws ExitCode::kInput on an id out of range.
  virtual std::string decode(std::span<const int64_t> ids) const = 0;
  /// The end-of-text token, or -1.
  virtual int64_t end_of_text() const = 0;
  /// Contents of the checkpoint's tokenizer.json (Hugging Face layout).
  virtual std::string to_json() const = 0;
};

/// 256 bytes, then `<|endoftext|>` = 256.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

/// Reads a checkpoint's tokenizer.json. Throws ExitCode::kInput when it is not one that Tamis knows.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& file);

}  // namespace tamis::text
