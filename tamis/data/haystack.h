#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tamis::data {

/// The filler of passkey retrieval (Mohtashami and Jaggi) and of RULER.
inline constexpr std::string_view kNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

/// The sentences between which a task hides its needles: kNoise, or a text file given by the user.
class Haystack {
 public:
  /// The five sentences of kNoise.
  Haystack();
  /// Reads a text file, or standard input for "-". White space becomes single spaces and invalid UTF-8 becomes U+FFFD.
  /// A sentence ends at `.`, `!` or `?`, optional closing quotes and brackets, and white space. Throws ExitCode::kInput
  /// when there is no text, a word has more than 1,000 bytes, or the text contains "special magic", as the needles do.
  explicit Haystack(const std::filesystem::path& file);

  /// Sentences from the beginning, repeated as often as needed, that have at most `bytes` bytes when joined by spaces.
  /// The last one is cut after a word, so that the next word would not fit. The views are valid as long as the
  /// haystack.
  std::vector<std::string_view> take(int64_t bytes) const;

  const std::vector<std::string>& sentences() const { return sentences_; }

 private:
  std::vector<std::string> sentences_;
};

/// The number of sentences that end at or before the fraction `depth`, in [0, 1], of the bytes of all sentences joined
/// by spaces.
size_t sentences_before(std::span<const std::string_view> sentences, double depth);

}  // namespace tamis::data
