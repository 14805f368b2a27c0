#include "tamis/data/text_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tamis/base/error.h"
#include "tamis/base/testing.h"

namespace tamis::data {
namespace {

using tamis::testing::error_of;
using tamis::testing::TemporaryDirectory;
using ::testing::HasSubstr;

class TextFiles : public ::testing::Test {
 protected:
  InputFile found(const std::string& name, const std::string& content, const std::string& format = "auto") {
    return find_text_files({directory_.write(name, content).string()}, format).at(0);
  }
  std::string refused(const std::string& name, const std::string& content) {
    const auto [code, text] = error_of([&] { found(name, content); });
    EXPECT_EQ(code, ExitCode::kInput);
    return text;
  }

  const TemporaryDirectory directory_;
};

TEST_F(TextFiles, TheCaseOfExtensionsDoesNotMatter) {
  EXPECT_EQ(found("A.JSONL", "{}").format, TextFormat::kJsonl);
  EXPECT_EQ(found("B.Ndjson.GZ", "").format, TextFormat::kJsonl);
  EXPECT_EQ(found("B.Ndjson.GZ", "").compression, Compression::kGzip);
  EXPECT_EQ(found("C.TXT.ZST", "").format, TextFormat::kText);
  EXPECT_EQ(found("C.TXT.ZST", "").compression, Compression::kZstd);
  EXPECT_EQ(find_text_files({directory_.path().string()}, "auto").size(), 3u);
}

TEST_F(TextFiles, JsonIsReadByLinesOrRefused) {
  EXPECT_EQ(found("a.json", "\xef\xbb\xbf\n {\"text\": \"one\"}\n{\"text\": \"two\"}").format, TextFormat::kJsonl);
  EXPECT_EQ(found("empty.json", "").format, TextFormat::kJsonl);
  EXPECT_EQ(found("list.json", "[1]", "text").format, TextFormat::kText);
  for (const char* content : {"[{\"text\": \"one\"}]", "{\n \"text\": \"one\"\n}", "plain text", "[\n"}) {
    EXPECT_THAT(refused("b.json", content), HasSubstr("b.json: expected JSON Lines, an object on each line"))
        << content;
  }
  EXPECT_THAT(refused("c.JSON", "[" + std::string(20 << 20, '1')), HasSubstr("c.JSON: expected JSON Lines"));
}

TEST_F(TextFiles, TokensNeedNoPreparation) {
  EXPECT_THAT(refused("a.bin", "x"), HasSubstr("a.bin: holds tokens, which need no preparation"));
  EXPECT_THAT(refused("a.npy", "x"), HasSubstr("as path of a data source of the kind \"corpus\""));
  EXPECT_EQ(found("a.bin", "x", "text").format, TextFormat::kText);
}

TEST_F(TextFiles, AnEmptyNameIsRefused) {
  const auto [code, text] = error_of([] { find_text_files({""}, "auto"); });
  EXPECT_EQ(code, ExitCode::kUsage);
  EXPECT_THAT(text, HasSubstr("expected the name of a file or folder, or a pattern, but it is empty"));
}

}  // namespace
}  // namespace tamis::data
