#include "tamis/text/huggingface_stream.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace tamis::text {
namespace {

constexpr std::string_view kUnknown = "\xef\xbf\xbd";  // U+FFFD

/// Ids that are decoded together at most. Text is kept back for an incomplete character only, of at most three bytes.
constexpr size_t kLongestWindow = 64;
constexpr size_t kContext = 8;

/// The part of `text` that later ids cannot change. An incomplete character at the end appears as U+FFFD: as one, or,
/// in tokenizers with byte_fallback, as one per byte.
std::string_view settled(std::string_view text) {
  for (int i = 0; i < 3 && text.ends_with(kUnknown); ++i) text.remove_suffix(kUnknown.size());
  return text;
}

class WindowDecoder : public StreamDecoder {
 public:
  WindowDecoder(const Tokenizer& tokenizer, std::span<const int64_t> context) : tokenizer_(tokenizer) {
    ids_.assign(context.end() - std::min(context.size(), kContext), context.end());
    returned_ = settled(tokenizer_.decode(ids_));
    context_ = ids_.size();
  }

  std::string push(int64_t id) override {
    ids_.push_back(id);
    const std::string text = decode_window(id);
    const size_t end = settled(text).size();
    const std::string piece = end > returned_.size() ? text.substr(returned_.size(), end - returned_.size()) : "";
    if (end == text.size() && !piece.empty()) {
      forget(context_);
    } else if (ids_.size() > kLongestWindow) {
      forget(ids_.size() - kContext);
    } else {
      returned_ += piece;
    }
    return piece;
  }

  std::string finish() override {
    const std::string text = tokenizer_.decode(ids_);
    const std::string rest = text.starts_with(returned_) ? text.substr(returned_.size()) : "";
    ids_.clear();
    returned_.clear();
    context_ = 0;
    return rest;
  }

 private:
  /// The text of the window. A decoder may replace text that was returned (byte_fallback, when a byte makes those
  /// before it invalid); then the window starts again at `id`.
  std::string decode_window(int64_t id) {
    std::string text = tokenizer_.decode(ids_);
    if (text.starts_with(returned_)) return text;
    ids_ = {id};
    context_ = 0;
    returned_.clear();
    return tokenizer_.decode(ids_);
  }

  /// Removes the first `count` ids. The others are the context of the next.
  void forget(size_t count) {
    ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(count));
    context_ = ids_.size();
    const std::string text = tokenizer_.decode(ids_);
    returned_ = settled(text);
  }

  const Tokenizer& tokenizer_;
  std::vector<int64_t> ids_;  // the context, whose text was returned, and what came after it
  size_t context_ = 0;        // ids of the context
  std::string returned_;      // the beginning of the window's text that was returned
};

}  // namespace

std::unique_ptr<StreamDecoder> make_window_decoder(const Tokenizer& tokenizer, std::span<const int64_t> context) {
  return std::make_unique<WindowDecoder>(tokenizer, context);
}

}  // namespace tamis::text
