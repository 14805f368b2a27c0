#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tamis::data {

/// The filler of passkey retrieval (Mohtashami and Jaggi) and of RULER: five sentences.
inline constexpr std::string_view kNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

/// Sentences to hide something in: the noise, or a text of the user's.
class Haystack {
 public:
  /// The five sentences of kNoise.
  Haystack();
  /// A text file, or standard input for "-": white space becomes single spaces, what is not UTF-8 becomes U+FFFD, and a
  /// sentence ends with `.`, `!` or `?`, quotes and brackets after it, and white space. Throws ExitCode::kInput when
  /// there is no text, a word has more than 1,000 bytes, or the text says "special magic", as the needles do.
  explicit Haystack(const std::filesystem::path& file);

  /// Sentences from the beginning, again and again, that joined by spaces have at most `bytes` bytes; the last one is
  /// cut after a word, so that another word would be too much. The views last as long as the haystack.
  std::vector<std::string_view> take(int64_t bytes) const;

  const std::vector<std::string>& sentences() const { return sentences_; }

 private:
  std::vector<std::string> sentences_;
};

/// Sentences before a place in their text, joined by spaces: as many as end at or before `depth` of its bytes, depth in
/// [0, 1].
size_t sentences_before(std::span<const std::string_view> sentences, double depth);

}  // namespace tamis::data
