#include "tamis/data/haystack.h"

#include <algorithm>

#include "tamis/base/error.h"
#include "tamis/base/input.h"
#include "tamis/text/utf8.h"

namespace tamis::data {
namespace {

constexpr size_t kLongestWord = 1000;
constexpr std::string_view kWordsOfNeedles = "special magic";

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (true) {
    const auto first = std::find_if_not(text.begin(), text.end(), is_space);
    if (first == text.end()) return words;
    const auto last = std::find_if(first, text.end(), is_space);
    words.emplace_back(first, last);
    text = {last, text.end()};
  }
}

bool ends_sentence(std::string_view word) {
  constexpr std::string_view kClosing = "\"')]\xe2\x80\x99\x9d";  // and the bytes of the curly quotes
  const size_t last = word.find_last_not_of(kClosing);
  return last != word.npos && std::string_view(".!?").find(word[last]) != word.npos;
}

std::vector<std::string> sentences_of(std::string_view text) {
  std::vector<std::string> sentences;
  bool open = false;
  for (const std::string_view word : words_of(text)) {
    if (!open) sentences.emplace_back();
    if (open) sentences.back() += ' ';
    sentences.back() += word;
    open = !ends_sentence(word);
  }
  return sentences;
}

std::vector<std::string> read_sentences(const std::filesystem::path& file) {
  const std::string text = text::valid_utf8(read_input(file));
  for (const std::string_view word : words_of(text)) {
    if (word.size() <= kLongestWord) continue;
    fail(ExitCode::kInput, "{}: a word of {} bytes; expected text with spaces between words of at most {}",
         input_name(file), word.size(), kLongestWord);
  }
  std::vector<std::string> sentences = sentences_of(text);
  if (sentences.empty()) fail(ExitCode::kInput, "{}: holds no words; expected text", input_name(file));
  for (const std::string& sentence : sentences) {
    if (sentence.find(kWordsOfNeedles) == sentence.npos) continue;
    fail(ExitCode::kInput, "{}: contains \"{}\", which only the needles may contain; use another text",
         input_name(file), kWordsOfNeedles);
  }
  return sentences;
}

/// The longest prefix of complete words that fits into `bytes` bytes.
std::string_view cut(std::string_view sentence, size_t bytes) {
  if (sentence.size() <= bytes) return sentence;
  const size_t space = sentence.rfind(' ', bytes);
  return sentence.substr(0, space == sentence.npos ? 0 : space);
}

}  // namespace

Haystack::Haystack() : sentences_(sentences_of(kNoise)) {}

Haystack::Haystack(const std::filesystem::path& file) : sentences_(read_sentences(file)) {}

std::vector<std::string_view> Haystack::take(int64_t bytes) const {
  std::vector<std::string_view> taken;
  for (size_t i = 0; bytes > 0; ++i) {
    const std::string_view sentence = sentences_[i % sentences_.size()];
    const std::string_view part = cut(sentence, static_cast<size_t>(bytes));
    if (!part.empty()) taken.push_back(part);
    if (part.size() < sentence.size()) break;
    bytes -= static_cast<int64_t>(part.size()) + 1;
  }
  return taken;
}

size_t sentences_before(std::span<const std::string_view> sentences, double depth) {
  double total = 0;
  for (const std::string_view sentence : sentences) total += static_cast<double>(sentence.size()) + 1;
  double end = 0;
  for (size_t i = 0; i < sentences.size(); ++i) {
    end += static_cast<double>(sentences[i].size()) + 1;
    if (end > depth * total) return i;
  }
  return sentences.size();
}

}  // namespace tamis::data
