#include "tamis/infer/stop_filter.h"

#include <gtest/gtest.h>

#include "tamis/base/error.h"
#include "tamis/base/random.h"

namespace tamis::infer {
namespace {

TEST(StopFilter, ReturnsTextThatCannotBecomeAStopString) {
  StopFilter filter({"END", "\n\n"});
  EXPECT_EQ(filter.push("abc"), "abc");
  EXPECT_EQ(filter.push("E"), "");
  EXPECT_EQ(filter.push("N"), "");
  EXPECT_EQ(filter.push("E"), "EN");  // the last E may begin the stop string
  EXPECT_EQ(filter.push("N\n"), "EN");
  EXPECT_FALSE(filter.stopped());
  EXPECT_EQ(filter.push("\nmore"), "");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.push("END"), "");
  EXPECT_EQ(filter.finish(), "");
}

TEST(StopFilter, FinishReturnsTheRest) {
  StopFilter filter({"END"});
  EXPECT_EQ(filter.push("aEN"), "a");
  EXPECT_EQ(filter.finish(), "EN");
}

TEST(StopFilter, AnyPiecesGiveTheTextBeforeTheFirstStop) {
  const std::vector<std::string> stops = {"aab", "ba"};
  for (uint64_t trial = 0; trial < 2'000; ++trial) {
    Random random({trial});
    std::string text;
    for (int i = 0; i < 12; ++i) text += "abc"[random.below(3)];
    size_t expected = text.size();
    for (const std::string& stop : stops) expected = std::min(expected, text.find(stop));

    StopFilter filter(stops);
    std::string shown;
    for (size_t start = 0; start < text.size();) {
      const size_t length = 1 + random.below(4);
      shown += filter.push(std::string_view(text).substr(start, length));
      start += length;
    }
    shown += filter.finish();
    ASSERT_EQ(shown, text.substr(0, expected)) << text;
    ASSERT_EQ(filter.stopped(), expected < text.size()) << text;
  }
}

TEST(StopFilter, RefusesAnEmptyStop) {
  EXPECT_THROW(StopFilter({"a", ""}), Error);
}

}  // namespace
}  // namespace tamis::infer
