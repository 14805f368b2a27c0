#include "tamis/text/byte_tokenizer.h"

#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/json.h"
#include "tamis/base/memory.h"
#include "tamis/base/names.h"
#include "tamis/text/tokenizer.h"
#include "tamis/text/utf8.h"

namespace tamis::text {
namespace {

constexpr int64_t kBytes = 256;
constexpr int64_t kEndOfText = kBytes;
constexpr const char* kEndOfTextName = "<|endoftext|>";

/// UTF-8 of a code point below U+0800.
std::string utf8(int code_point) {
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xc0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 0x3f))};
}

/// GPT-2's alphabet (ByteLevel in Hugging Face tokenizers): a printable character for every byte. Printable Latin-1
/// bytes map to themselves; the others, in order, to U+0100, U+0101, ...
std::array<std::string, kBytes> byte_alphabet() {
  std::array<std::string, kBytes> alphabet;
  int next = 0x100;
  for (int byte = 0; byte < kBytes; ++byte) {
    const bool printable = ('!' <= byte && byte <= '~') || (0xa1 <= byte && byte != 0xad);
    alphabet[byte] = utf8(printable ? byte : next++);
  }
  return alphabet;
}

void check_id(int64_t id, size_t at) {
  if (id < 0 || id > kEndOfText) {
    fail(ExitCode::kInput, "byte tokenizer: token {} is {}; expected 0..{}", at, id, kEndOfText);
  }
}

class ByteStreamDecoder : public StreamDecoder {
 public:
  std::string push(int64_t id) override {
    check_id(id, pushed_++);
    const char byte = static_cast<char>(id);
    return characters_.push(id == kEndOfText ? kEndOfTextName : std::string_view(&byte, 1));
  }

  std::string finish() override { return characters_.finish(); }

 private:
  Utf8Stream characters_;
  size_t pushed_ = 0;
};

class ByteTokenizer : public Tokenizer {
 public:
  std::string name() const override { return "byte"; }
  int64_t vocab_size() const override { return kBytes + 1; }
  int64_t end_of_text() const override { return kEndOfText; }

  /// Text that looks like a special token is encoded as plain bytes.
  std::vector<int64_t> encode(std::string_view text) const override {
    const auto bytes = sizeof(int64_t) * static_cast<double>(text.size());
    if (bytes > kWorthAsking) require_memory(bytes, "the tokens of this text", "use a shorter text");
    std::vector<int64_t> ids(text.size());
    for (size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
    return ids;
  }

  std::string decode(std::span<const int64_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      check_id(ids[i], i);
      if (ids[i] == kEndOfText) {
        text += kEndOfTextName;
      } else {
        text += static_cast<char>(ids[i]);
      }
    }
    return text;
  }

  std::unique_ptr<StreamDecoder> stream_decoder(std::span<const int64_t> /*context*/) const override {
    return std::make_unique<ByteStreamDecoder>();
  }

  std::string to_json() const override {
    using Json = nlohmann::ordered_json;
    const Json byte_level = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
    Json vocab = Json::object();
    const auto alphabet = byte_alphabet();
    for (int64_t byte = 0; byte < kBytes; ++byte) vocab[alphabet[byte]] = byte;
    vocab[kEndOfTextName] = kEndOfText;
    const Json end_of_text = {{"id", kEndOfText}, {"content", kEndOfTextName}, {"single_word", false},
                              {"lstrip", false},  {"rstrip", false},           {"normalized", false},
                              {"special", true}};
    const Json model = {{"type", "BPE"},
                        {"dropout", nullptr},
                        {"unk_token", nullptr},
                        {"continuing_subword_prefix", nullptr},
                        {"end_of_word_suffix", nullptr},
                        {"fuse_unk", false},
                        {"byte_fallback", false},
                        {"ignore_merges", false},
                        {"vocab", vocab},
                        {"merges", Json::array()}};
    const Json file = {{"version", "1.0"},
                       {"truncation", nullptr},
                       {"padding", nullptr},
                       {"added_tokens", Json::array({end_of_text})},
                       {"normalizer", nullptr},
                       {"pre_tokenizer", byte_level},
                       {"post_processor", nullptr},
                       {"decoder", byte_level},
                       {"model", model}};
    return file.dump(2) + "\n";
  }
};

using nlohmann::json;

/// `file[key]`, or null when `file` is not an object or lacks the key.
const json& field(const json& file, const char* key) {
  static const json kNull;
  const auto found = file.is_object() ? file.find(key) : file.end();
  return found == file.end() ? kNull : *found;
}

}  // namespace

// Compares everything that can change ids or text, and treats unknown keys as a difference. The version, the splitting
// into words and the options of merges have no effect without merges and are ignored.
std::string difference_from_bytes(const json& file) {
  static const std::set<std::string, std::less<>> kKnown = {"version",        "truncation", "padding",
                                                            "added_tokens",   "normalizer", "pre_tokenizer",
                                                            "post_processor", "decoder",    "model"};
  if (!file.is_object()) return "expected an object, but it is " + shown(file);
  for (const auto& [key, value] : file.items()) {
    if (!kKnown.contains(key))
      return fmt::format("it has the key {}, which no tokenizer.json should have", quoted_name(key));
  }
  const json& model = field(file, "model");
  if (field(model, "type") != "BPE") return "its model type is " + shown(field(model, "type")) + " instead of \"BPE\"";
  if (const json& merges = field(model, "merges"); !merges.empty()) {
    return fmt::format("it has {} merges instead of none", merges.size());
  }
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const json& value = field(model, key);
    if (!value.is_null() && value != "" && value != 0) return fmt::format("its model has the {} {}", key, shown(value));
  }
  if (!field(file, "normalizer").is_null()) return "it has a normalizer, which changes bytes";
  if (!field(file, "post_processor").is_null()) return "it has a post_processor, which may add tokens";
  if (!field(file, "truncation").is_null()) return "it has a truncation, which drops tokens";
  if (!field(file, "padding").is_null()) return "it has a padding, which adds tokens";
  const json& words = field(file, "pre_tokenizer");
  if (field(words, "type") != "ByteLevel" || field(words, "add_prefix_space") != false) {
    return "its pre_tokenizer is not ByteLevel without add_prefix_space";
  }
  if (field(field(file, "decoder"), "type") != "ByteLevel") return "its decoder is not ByteLevel";
  const json& vocab = field(model, "vocab");
  const auto alphabet = byte_alphabet();
  for (int64_t byte = 0; byte < kBytes; ++byte) {
    const json& id = field(vocab, alphabet[byte].c_str());
    if (id != byte) return fmt::format("byte {} has the id {} instead of {}", byte, shown(id), byte);
  }
  const json& special = field(file, "added_tokens");
  if (!special.is_array() || special.size() != 1 || field(special[0], "content") != kEndOfTextName ||
      field(special[0], "id") != kEndOfText) {
    return fmt::format("its added_tokens are not one {} = {}", kEndOfTextName, kEndOfText);
  }
  const size_t entries = kBytes + (field(vocab, kEndOfTextName) == kEndOfText ? 1 : 0);
  if (vocab.size() != entries) return fmt::format("its vocabulary has {} entries instead of {}", vocab.size(), entries);
  return "";
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

}  // namespace tamis::text
