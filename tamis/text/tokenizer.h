#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tamis::text {

/// Converts text to token ids and back.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string name() const = 0;
  virtual int64_t vocab_size() const = 0;
  /// Accepts any bytes that the tokenizer can represent, valid UTF-8 or not; throws ExitCode::kInput for others, and
  /// ExitCode::kRuntime when the ids do not fit into memory.
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  /// The bytes of the ids; special tokens become their names. Throws ExitCode::kInput for an id out of range.
  virtual std::string decode(std::span<const int64_t> ids) const = 0;
  /// The id of the end-of-text token; -1 when there is none.
  virtual int64_t end_of_text() const = 0;
  /// Contents of the checkpoint's tokenizer.json (Hugging Face layout).
  virtual std::string to_json() const = 0;
};

/// 256 bytes, then `<|endoftext|>` = 256.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

/// Reads a checkpoint's tokenizer.json. Throws ExitCode::kInput unless it is equivalent to the byte tokenizer.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& file);

}  // namespace tamis::text
