#include "tamis/data/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tamis/base/testing.h"

namespace tamis::data {
namespace {

using tamis::testing::TemporaryDirectory;
using ::testing::ElementsAre;

std::vector<InputFile> files_of(const TemporaryDirectory& directory, const std::vector<std::string>& names) {
  std::vector<std::string> paths;
  for (const std::string& name : names) paths.push_back((directory.path() / name).string());
  return find_input_files(paths, "auto");
}

/// One word for each record: its kind, place and text.
std::vector<std::string> records_of(const std::vector<InputFile>& files, const RecordLimits& limits,
                                    RecordPosition from = {}, std::vector<RecordPosition>* positions = nullptr) {
  RecordReader reader(files, limits, from);
  std::vector<std::string> found;
  for (RecordReader::Batch batch; reader.next(batch); batch = {}) {
    for (const Record& record : batch.records) {
      constexpr std::string_view kKinds = "PLEC";
      found.push_back(fmt::format("{}{}:{} {}{}", kKinds[static_cast<size_t>(record.kind)], record.file, record.line,
                                  record.text, record.ends_document ? "" : "+"));
    }
    if (positions) positions->push_back(batch.end);
  }
  return found;
}

TEST(Records, LinesAndTextsComeInOrder) {
  const TemporaryDirectory directory;
  directory.write("a.txt", "some text\n");
  directory.write("b.jsonl", "one\n\n  \ntwo\r\nthree");
  directory.write("c.txt", "");
  directory.write("d.jsonl", "");
  directory.write("e.txt", "\xff");
  directory.write("f.txt",
                  "\xef\xbb\xbf"
                  "end");
  EXPECT_THAT(records_of(files_of(directory, {"a.txt", "b.jsonl", "c.txt", "d.jsonl", "e.txt", "f.txt"}), {}),
              ElementsAre("P0:0 some text\n", "L1:1 one", "L1:4 two\r", "L1:5 three", "E2:0 ", "C4:0 ", "P5:0 end"));
}

TEST(Records, AReaderGoesOnBehindAnyBatch) {
  const TemporaryDirectory directory;
  std::string text, lines;
  for (int i = 0; i < 50; ++i) {
    text += fmt::format("line {}\n", i);
    lines += fmt::format("record {}{}\n", i, i % 7 == 0 ? std::string(60, 'x') : "");
  }
  directory.write("a.txt", text);
  directory.write("b.jsonl", lines);
  directory.write("c.txt", "\xef\xbb\xbf" + text);
  const auto files = files_of(directory, {"a.txt", "b.jsonl", "c.txt"});
  const RecordLimits limits{.batch_bytes = 300, .document_bytes = 60, .piece_bytes = 40};
  std::vector<RecordPosition> positions;
  const auto all = records_of(files, limits, {}, &positions);
  ASSERT_GT(positions.size(), 20u);
  size_t shorter = all.size() + 1;
  for (const RecordPosition& from : positions) {
    const auto rest = records_of(files, limits, from);
    ASSERT_LT(rest.size(), shorter);
    shorter = rest.size();
    EXPECT_TRUE(std::equal(rest.rbegin(), rest.rend(), all.rbegin()));
  }
  EXPECT_EQ(shorter, 0u);
  EXPECT_EQ(std::count_if(all.begin(), all.end(), [](const auto& record) { return record[0] == 'C'; }), 8);
}

TEST(Records, PiecesJoinToTheText) {
  const RecordLimits limits{.document_bytes = 50, .piece_bytes = 20};
  for (const std::string& text :
       {std::string("word\nword word.\nword\nword, word word word word word"), std::string(200, 'x'),
        std::string("\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n"),
        std::string("\u00e9\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d"
                    "\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d\u4e2d")}) {
    std::string joined;
    for (std::string_view rest = text; !rest.empty();) {
      const size_t length = cut_text(rest, true, limits);
      ASSERT_GT(length, 0u);
      ASSERT_LE(length, limits.document_bytes);
      ASSERT_TRUE(length == rest.size() || (rest[length] & 0xc0) != 0x80) << "inside a character";
      joined += rest.substr(0, length);
      rest.remove_prefix(length);
    }
    EXPECT_EQ(joined, text);
  }
  EXPECT_EQ(cut_text("seventeen\nletters\nand more", true, limits), 17u);
  RecordLimits behind_digits = limits;
  behind_digits.cut_behind = "0123456789";
  EXPECT_EQ(cut_text("room 2\nletters\nand more", true, behind_digits), 23u) << "not in the first half";
  EXPECT_EQ(cut_text("many letters 2\nand\nmore", true, behind_digits), 14u);
  EXPECT_EQ(cut_text("short", true, limits), 5u);
  EXPECT_EQ(cut_text("short", false, limits), 0u);
}

}  // namespace
}  // namespace tamis::data
