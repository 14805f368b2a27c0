#include "tamis/data/task_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tamis::data {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Answers = std::vector<std::string>;

TEST(TaskText, AppendingRecordsTheAnswerSpans) {
  const std::vector<Piece> pieces = {
      plain_piece("ab"), {.text = "c=12.", .answer = 1, .span = {2, 4}}, {.text = "3", .answer = 0, .span = {0, 1}}};
  std::string prompt = "> ";
  std::vector<ByteSpan> spans(2);
  append_pieces(prompt, pieces, ", ", spans);
  EXPECT_EQ(prompt, "> ab, c=12., 3");
  EXPECT_EQ(prompt.substr(spans[1].begin, spans[1].end - spans[1].begin), "12");
  EXPECT_EQ(prompt.substr(spans[0].begin, spans[0].end - spans[0].begin), "3");
  EXPECT_EQ(joined_bytes(pieces, ", "), 12);
  EXPECT_EQ(joined_bytes({}, ", "), 0);
}

TEST(TaskText, NumbersHaveTheirDigits) {
  Random random({1});
  for (int64_t digits = 1; digits < 9; ++digits) {
    for (int i = 0; i < 200; ++i) {
      const std::string number = draw_number(random, digits);
      ASSERT_EQ(static_cast<int64_t>(number.size()), digits);
      ASSERT_NE(number[0], '0');
    }
  }
}

TEST(TaskText, PlacesAreDifferentAndAscend) {
  Random random({1});
  EXPECT_THAT(draw_places(random, 3, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(draw_places(random, 0, 0), IsEmpty());
}

TEST(TaskText, FindsEverythingBetween) {
  EXPECT_THAT(all_between("a is 1. b is 2. is", " is ", "."), ElementsAre("1", "2"));
  EXPECT_THAT(all_between("(())", "(", ")"), ElementsAre("(", ""));
  EXPECT_THAT(all_between("", "(", ")"), IsEmpty());
  EXPECT_THAT(distinct(all_between("[b][a][b]", "[", "]")), ElementsAre("a", "b"));
}

TEST(TaskText, TheFirstNumberCounts) {
  EXPECT_EQ(first_number_matches(" 12345. Then 7", Answers{"12345"}), 1);
  EXPECT_EQ(first_number_matches("12345", Answers{"12345"}), 1);
  EXPECT_EQ(first_number_matches("123456", Answers{"12345"}), 0);
  EXPECT_EQ(first_number_matches("7, no: 12345", Answers{"12345"}), 0);
  EXPECT_EQ(first_number_matches("", Answers{"12345"}), 0);
}

TEST(TaskText, TheShareOfContainedAnswersIgnoresTheCase) {
  EXPECT_EQ(contained_share("abcde, FGHIJ", Answers{"ABCDE", "FGHIJ", "KLMNO", "PQRST"}), 0.5);
  EXPECT_EQ(contained_share("It is 1234567890", Answers{"1234567"}), 1);  // as in the harness
  EXPECT_EQ(contained_share("", Answers{"1"}), 0);
}

}  // namespace
}  // namespace tamis::data
