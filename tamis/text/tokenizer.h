#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tamis::text {

/// Converts ids that arrive one by one to text. Each piece is valid UTF-8 and ends with a complete character; bytes
/// that are not UTF-8 become U+FFFD. The pieces joined are the text of all ids.
class StreamDecoder {
 public:
  virtual ~StreamDecoder() = default;
  /// The characters that `id` completes; may be empty. Throws ExitCode::kInput for an id out of range.
  virtual std::string push(int64_t id) = 0;
  /// What was kept back; to be called after the last id.
  virtual std::string finish() = 0;
};

/// Converts text to token ids and back. All functions may be called from several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// `byte` or, for a tokenizer.json, the kind of its model, such as `BPE`.
  virtual std::string name() const = 0;
  /// Ids are below this: the largest id plus one.
  virtual int64_t vocab_size() const = 0;
  /// The ids of `text`, without the special tokens that a post-processor would add. Throws ExitCode::kRuntime when they
  /// do not fit into memory.
  ///
  /// The byte tokenizer takes any bytes, and text that looks like a special token is encoded as plain bytes. All others
  /// equal `encode(text, add_special_tokens=False)` of the Python package `tokenizers`: added tokens in the text are
  /// recognised, and truncation and padding that the file asks for are ignored. Their input is Unicode, so each maximal
  /// sequence that is not UTF-8 becomes one U+FFFD first.
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  /// encode() of each text, on `threads` threads (0: one per core).
  std::vector<std::vector<int64_t>> encode_batch(std::span<const std::string_view> texts, int64_t threads = 0) const;
  /// The text of the ids; special tokens become their names. The bytes of the byte tokenizer come back unchanged, valid
  /// UTF-8 or not. Throws ExitCode::kInput for an id out of range.
  virtual std::string decode(std::span<const int64_t> ids) const = 0;
  /// Decodes the ids after `context`, whose last few may change their text: some tokenizers leave out the space before
  /// the first word. The byte tokenizer needs no context. The tokenizer must outlive the decoder.
  virtual std::unique_ptr<StreamDecoder> stream_decoder(std::span<const int64_t> context = {}) const = 0;
  /// The id of the end-of-text token; -1 when there is none. In a tokenizer.json it is the added token with one of the
  /// names <|endoftext|>, <|end_of_text|>, </s>, <eos>, <|eot|>, [SEP], in this order.
  virtual int64_t end_of_text() const = 0;
  /// Contents of the checkpoint's tokenizer.json (Hugging Face layout).
  virtual std::string to_json() const = 0;
  /// SHA-256 of to_json() with sorted keys and without white space, as 64 hexadecimal digits. Two files with the same
  /// digest give the same ids.
  std::string digest() const;
};

/// 256 bytes, then `<|endoftext|>` = 256.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

/// Reads a tokenizer.json of at most 64 MiB: the byte tokenizer when the file is equivalent to it, else any tokenizer
/// of Hugging Face's `tokenizers`. Throws ExitCode::kInput when the file is damaged, and ExitCode::kRuntime when this
/// build cannot read it because cargo was missing.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& file);

}  // namespace tamis::text
