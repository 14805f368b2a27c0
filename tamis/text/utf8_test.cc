#include "tamis/text/utf8.h"

#include <gtest/gtest.h>

namespace tamis::text {
namespace {

TEST(Utf8, ValidTextIsUntouched) {
  const std::string text = "plain, \u00e9\u00fc, \u20ac, \u65e5\u672c, \U0001f600, \U0010ffff";
  EXPECT_EQ(valid_utf8(text), text);
}

TEST(Utf8, ReplacesOnePerMaximalInvalidPart) {
  EXPECT_EQ(valid_utf8("\x80"), "\ufffd");                                // continuation alone
  EXPECT_EQ(valid_utf8("\xc0\xaf"), "\ufffd\ufffd");                      // overlong
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), "\ufffd\ufffd\ufffd");            // surrogate
  EXPECT_EQ(valid_utf8("\xf4\x90\x80\x80"), "\ufffd\ufffd\ufffd\ufffd");  // beyond U+10FFFF
  EXPECT_EQ(valid_utf8("\xe2\x82g"), "\ufffdg");                          // cut by another character
  EXPECT_EQ(valid_utf8("a\xf0\x9f\x98"), "a\ufffd");                      // cut by the end
  EXPECT_EQ(valid_utf8("\xf1\x80\x80\xe1\x80\xc2\x62"),
            "\ufffd\ufffd\ufffd"
            "b");  // the Unicode standard's table 3-8
}

TEST(Utf8, BytesOneByOneGiveTheSameText) {
  const std::string text = "\u00e9 \xff\u20ac\xe2\x82 \U0001f600\xf0\x9f";
  Utf8Stream stream;
  std::string streamed;
  for (const char byte : text) streamed += stream.push({&byte, 1});
  EXPECT_EQ(streamed + stream.finish(), valid_utf8(text));
  EXPECT_EQ(stream.finish(), "");
}

TEST(Utf8, HoldsBackWhatIsNotYetACharacter) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xf0\x9f"), "a");
  EXPECT_EQ(stream.push("\x98"), "");
  EXPECT_EQ(stream.push("\x80z"), "\U0001f600z");
  EXPECT_EQ(stream.finish(), "");
}

}  // namespace
}  // namespace tamis::text
