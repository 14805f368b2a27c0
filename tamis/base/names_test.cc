#include "tamis/base/names.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tamis {
namespace {

const std::vector<std::string> kModels = {"multiscreen", "swax", "transformer"};

TEST(Names, EditDistanceCountsEdits) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("multiscreen", "mulitscreen"), 1);  // neighbours swapped
  EXPECT_EQ(edit_distance("same", "same"), 0);
}

TEST(Names, NearNamesAreGuessed) {
  EXPECT_EQ(unknown_name("model", "multiscren", kModels),
            "unknown model \"multiscren\"; did you mean \"multiscreen\"? Known: multiscreen, swax, transformer");
}

TEST(Names, FarNamesAreNot) {
  EXPECT_EQ(unknown_name("model", "rwkv", kModels), "unknown model \"rwkv\". Known: multiscreen, swax, transformer");
}

TEST(Names, LongNamesAreNotComparedByEditDistance) {
  // 4 MB against every known name would take minutes.
  const std::string text = unknown_name("model key", std::string(4'000'000, 'a'), kModels);
  EXPECT_EQ(text, "unknown model key \"" + std::string(80, 'a') + "...\". Known: multiscreen, swax, transformer");
  // One edit away from a known name: only names of at most 64 bytes are compared.
  const auto one_edit_away = [](size_t bytes) {
    const std::vector<std::string> known = {std::string(bytes, 'k')};
    return unknown_name("key", std::string(bytes - 1, 'k') + 'x', known);
  };
  EXPECT_EQ(one_edit_away(70), "unknown key \"" + std::string(69, 'k') + "x\". Known: " + std::string(70, 'k'));
  EXPECT_EQ(one_edit_away(64), "unknown key \"" + std::string(63, 'k') + "x\"; did you mean \"" + std::string(64, 'k') +
                                   "\"? Known: " + std::string(64, 'k'));
}

TEST(Names, PlainNamesNeedNoEscapes) {
  for (const char* name : {"a", "wiki.en+de_2-3", "-", "A9"}) EXPECT_TRUE(is_plain(name)) << name;
  for (const char* name : {"", ".", ".hidden", "a b", "a/b", "gr\xc3\xb6\xc3\x9f", "\x1b[2J", "\xff"}) {
    EXPECT_FALSE(is_plain(name)) << name;
  }
  EXPECT_TRUE(is_plain(std::string(64, 'a')));
  EXPECT_FALSE(is_plain(std::string(65, 'a')));
}

TEST(Names, QuotedNamesAreOneShortPrintableLine) {
  EXPECT_EQ(quoted_name("train"), "\"train\"");
  EXPECT_EQ(quoted_name("a\"b\\c"), R"("a\"b\\c")");
  EXPECT_EQ(quoted_name("one\ntwo\t\x1b[2J\x7f"), R"("one\ntwo\t\u001b[2J\u007f")");
  EXPECT_EQ(quoted_name("gr\xc3\xb6\xc3\x9f"
                        "e"),
            "\"gr\xc3\xb6\xc3\x9f"
            "e\"");
  EXPECT_EQ(quoted_name("\xff\xc3"), R"("\xff\xc3")");
  EXPECT_EQ(quoted_name("\xe2\x80\xae"
                        "gpj"),
            R"("\u202egpj")");  // right-to-left override
  EXPECT_EQ(quoted_name("\xc2\x9b"
                        "2J"),
            R"("\u009b2J")");  // a control sequence of eight bits
  EXPECT_EQ(quoted_name(std::string("a\0b", 3)), R"("a\u0000b")");
  EXPECT_LT(quoted_name(std::string(4'000'000, '\xff')).size(), 90u);
}

TEST(Names, OneLineHasNoSecondAndNoEscapeSequence) {
  EXPECT_EQ(one_line("runs/a\nb: \"x\" \x1b[31m"), R"(runs/a\nb: "x" \u001b[31m)");
  EXPECT_LT(one_line(std::string(1'000'000, 'x')).size(), 4100u);
}

}  // namespace
}  // namespace tamis
