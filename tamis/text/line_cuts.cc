#include "tamis/text/line_cuts.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "tamis/base/json.h"

namespace tamis::text {
namespace {

using nlohmann::json;

constexpr std::string_view kLineEnds = "\n\r";

/// Published expressions for words. Their matches cover a text, none has a line end after a letter or digit, and
/// what follows a match matters only in whether it is white space.
constexpr std::array<std::string_view, 8> kWords = {
    // GPT-2
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    // GPT-4, LLaMA 3
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
    // Qwen 2 and 3, OLMo 2
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    // GPT-4o, LLaMA 4
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    // Mistral's Tekken
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    // DeepSeek 3
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)",
};

/// Published expressions whose matches hold no line end and do not depend on what is around them.
constexpr std::array<std::string_view, 4> kRuns = {R"(\p{N}{1,3})", R"(\p{N})", R"([0-9])",
                                                   "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"};

bool is_alphanumeric(char c) {
  return kAsciiAlphanumeric.find(c) != std::string_view::npos;
}

const json& member(const json& object, const char* key) {
  static const json kNull;
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found == object.end() ? kNull : *found;
}

bool is_type(const json& part, std::initializer_list<std::string_view> types) {
  return std::ranges::find(types, text_at(part, "type")) != types.end();
}

/// The members of a Sequence, or the part itself; none for null.
std::vector<const json*> members_of(const json& part, const char* list) {
  if (part.is_null()) return {};
  if (!is_type(part, {"Sequence"})) return {&part};
  std::vector<const json*> members;
  for (const json& each : member(part, list)) {
    for (const json* one : members_of(each, list)) members.push_back(one);
  }
  return members;
}

bool is_line_end(char c) {
  return kLineEnds.find(c) != std::string_view::npos;
}

/// True when no match of `text` can reach across a cut.
bool keeps_off_cuts(std::string_view text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (is_alphanumeric(text[i - 1]) && is_line_end(text[i])) return false;
  }
  return true;
}

class CutSearch {
 public:
  explicit CutSearch(const json& tokenizer) : tokenizer_(tokenizer) {}

  std::string letters() {
    if (!normalizer_is_local() || !allow_added_tokens()) return "";
    const std::optional<bool> separated = words_are_separated();
    if (!separated) return "";
    if (!*separated && !allow_merges()) return "";
    return letters_;
  }

 private:
  /// No cut behind this letter in either case: a normalizer may change it.
  void refuse(char letter) {
    constexpr int kCase = 'a' - 'A';  // digits have this bit
    std::erase_if(letters_, [&](char c) { return (c | kCase) == (letter | kCase); });
  }

  /// Refuses the letters that `text` has in front of `line_end`.
  void refuse_before(std::string_view text, std::string_view line_end) {
    for (size_t at = text.find(line_end, 1); at != text.npos; at = text.find(line_end, at + 1)) {
      if (is_alphanumeric(text[at - 1])) refuse(text[at - 1]);
    }
  }

  /// Finds whether each side of a cut is normalized as in the whole, with the letter and, unless it becomes a space,
  /// the line end in their places.
  bool normalizer_is_local() {
    for (const json* part : members_of(member(tokenizer_, "normalizer"), "normalizers")) {
      normalized_ = true;
      if (is_type(*part, {"BertNormalizer"})) {
        spaces_for_line_ends_ = true;
      } else if (is_type(*part, {"Replace"})) {
        const std::string pattern = text_at(member(*part, "pattern"), "String");
        const bool touches = std::ranges::any_of(pattern, [](char c) { return is_alphanumeric(c) || is_line_end(c); });
        if (pattern.empty() || touches || spaces_for_line_ends_) return false;
      } else if (!is_type(*part, {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"})) {
        return false;
      }
    }
    return true;
  }

  bool allow_added_tokens() {
    for (const json& token : member(tokenizer_, "added_tokens")) {
      const std::string content = text_at(token, "content");
      const auto has = [&](const char* key) { return member(token, key) != false; };
      const bool normalized = normalized_ && has("normalized");  // its content changes like the text
      if (normalized && (has("rstrip") || content.find_first_of(" \t\n\v\f\r") != content.npos)) return false;
      if (content.empty()) continue;
      if (has("single_word") && is_line_end(content.front())) return false;
      if (has("rstrip") && is_alphanumeric(content.back())) refuse(content.back());
      for (const std::string_view line_end : {"\n", "\r"}) refuse_before(content, line_end);
    }
    return true;
  }

  /// Whether a word ends at every cut; none when words elsewhere may depend on the cut.
  std::optional<bool> words_are_separated() {
    bool separated = false;
    for (const json* part : members_of(member(tokenizer_, "pre_tokenizer"), "pretokenizers")) {
      if (byte_level_) return std::nullopt;  // its letters stand for other characters
      if (is_type(*part, {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"})) {
        separated = true;
      } else if (spaces_for_line_ends_) {
        return std::nullopt;
      } else if (is_type(*part, {"ByteLevel"})) {
        if (member(*part, "add_prefix_space") != false) return std::nullopt;
        byte_level_ = true;
        separated |= member(*part, "use_regex") != false;
      } else if (is_type(*part, {"Split"})) {
        const std::optional<bool> splits = splits_at_cuts(*part);
        if (!splits) return std::nullopt;
        separated |= *splits;
      } else if (is_type(*part, {"Metaspace"})) {
        if (text_at(*part, "prepend_scheme") != "never") return std::nullopt;
      } else if (!is_type(*part, {"Digits", "Punctuation"})) {
        return std::nullopt;
      }
    }
    return separated;
  }

  /// The same of a Split. With a text as its pattern at most the two words next to the cut become one.
  static std::optional<bool> splits_at_cuts(const json& split) {
    const json& pattern = member(split, "pattern");
    if (const std::string text = text_at(pattern, "String"); !text.empty() && keeps_off_cuts(text)) return false;
    const std::string expression = text_at(pattern, "Regex"), behavior = text_at(split, "behavior");
    const bool keeps_matches = behavior == "Isolated" || (behavior == "Removed" && member(split, "invert") == true);
    if (!keeps_matches) return std::nullopt;
    if (std::ranges::find(kWords, expression) != kWords.end()) return true;
    if (behavior == "Isolated" && std::ranges::find(kRuns, expression) != kRuns.end()) return false;
    return std::nullopt;
  }

  /// For words that reach across cuts: refuses the letters that an entry of the vocabulary has in front of a line end,
  /// so that no merge joins the two sides. False when the ids depend on the word as a whole.
  bool allow_merges() {
    const json& model = member(tokenizer_, "model");
    const bool affixed = !text_at(model, "continuing_subword_prefix").empty() ||
                         !text_at(model, "end_of_word_suffix").empty() || member(model, "ignore_merges") == true;
    if (!is_type(model, {"BPE"}) || affixed || spaces_for_line_ends_) return false;
    std::vector<std::string> line_ends = {"<0x0A>", "<0x0D>"};  // of byte_fallback
    for (const char* end : {"\n", "\r"}) line_ends.emplace_back(end);
    if (byte_level_) line_ends.insert(line_ends.end(), {"\u010a", "\u010d"});
    if (std::string unknown = text_at(model, "unk_token"); !unknown.empty()) line_ends.push_back(std::move(unknown));
    const json& vocab = member(model, "vocab");
    if (!vocab.is_object()) return false;
    for (const char letter : kAsciiAlphanumeric) {  // an unknown one may be joined with an unknown line end
      if (!vocab.contains(std::string(1, letter))) refuse(letter);
    }
    for (const auto& [token, id] : vocab.items()) {
      for (const std::string& line_end : line_ends) refuse_before(token, line_end);
    }
    return true;
  }

  const json& tokenizer_;
  std::string letters_{kAsciiAlphanumeric};
  bool normalized_ = false;
  bool spaces_for_line_ends_ = false;
  bool byte_level_ = false;
};

}  // namespace

std::string letters_before_cuts(const json& tokenizer) {
  return CutSearch(tokenizer).letters();
}

}  // namespace tamis::text
