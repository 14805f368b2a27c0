#include "tamis/data/haystack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tamis/base/testing.h"

namespace tamis::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Haystack, NoiseRepeatsFiveSentences) {
  const Haystack noise;
  EXPECT_EQ(noise.sentences().size(), 5u);
  EXPECT_THAT(noise.take(19 + 1 + 16), ElementsAre("The grass is green.", "The sky is blue."));
  EXPECT_THAT(noise.take(19 + 1 + 15), ElementsAre("The grass is green.", "The sky is"));
  EXPECT_THAT(noise.take(19 + 1 + 2), ElementsAre("The grass is green."));
  EXPECT_THAT(noise.take(2), IsEmpty());
  EXPECT_THAT(noise.take(0), IsEmpty());
  EXPECT_THAT(noise.take(-5), IsEmpty());
  const auto twice = noise.take(2 * static_cast<int64_t>(kNoise.size()) + 1);
  ASSERT_EQ(twice.size(), 10u);
  EXPECT_EQ(twice[9], "There and back again.");
}

TEST(Haystack, SentencesOfATextEndWithTheirMarksAndQuotes) {
  const tamis::testing::TemporaryDirectory directory;
  const Haystack haystack(directory.write(
      "a.txt", " \"Stop!\" he said.\n\nWhy? (No reason.) \xe2\x80\x9cHm.\xe2\x80\x9d At 3.5 percent\tand \xff more"));
  EXPECT_THAT(haystack.sentences(), ElementsAre("\"Stop!\"", "he said.", "Why?", "(No reason.)",
                                                "\xe2\x80\x9cHm.\xe2\x80\x9d", "At 3.5 percent and \xef\xbf\xbd more"));
}

TEST(Haystack, RefusesUnsuitableTexts) {
  const tamis::testing::TemporaryDirectory directory;
  const auto refused = [&](const std::string& text) {
    const auto path = directory.write("a.txt", text);
    const auto [code, said] = tamis::testing::error_of([&] { Haystack{path}; });
    EXPECT_EQ(code, ExitCode::kInput);
    EXPECT_THAT(said, HasSubstr(path.string()));
    return said;
  };
  EXPECT_THAT(refused(""), HasSubstr("holds no words"));
  EXPECT_THAT(refused(" \n\t "), HasSubstr("holds no words"));
  EXPECT_THAT(refused("a " + std::string(1001, 'b')), HasSubstr("a word of 1001 bytes"));
  EXPECT_THAT(refused("The special\nmagic number."), HasSubstr("contains \"special magic\""));
  const auto [code, said] = tamis::testing::error_of([&] { Haystack(directory.path() / "none.txt"); });
  EXPECT_EQ(code, ExitCode::kInput);
}

TEST(Haystack, DepthCountsBytes) {
  const std::vector<std::string_view> sentences = {"aaaaaaaaa", "b", "c", "dddd"};  // 10, 2, 2 and 5 with their spaces
  EXPECT_EQ(sentences_before(sentences, 0), 0u);
  EXPECT_EQ(sentences_before(sentences, 0.5), 0u);
  EXPECT_EQ(sentences_before(sentences, 0.55), 1u);
  EXPECT_EQ(sentences_before(sentences, 0.7), 2u);
  EXPECT_EQ(sentences_before(sentences, 0.99), 3u);
  EXPECT_EQ(sentences_before(sentences, 1), 4u);
  EXPECT_EQ(sentences_before({}, 0.5), 0u);
}

}  // namespace
}  // namespace tamis::data
