#include "tamis/data/text_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <set>

#include "tamis/base/error.h"
#include "tamis/base/files.h"

namespace tamis::data {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class TextFile : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() / ("tamis_text_file_" + std::to_string(getpid()));
    make_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  fs::path file(const std::string& name, std::string_view text) const {
    write_file_atomic(directory_ / name, text);
    return directory_ / name;
  }

  TextFileSource open(const TextFileOptions& options) const { return TextFileSource(*tokenizer_, options); }

  std::string error_of(const TextFileOptions& options, ExitCode code, int64_t length = 4) const {
    try {
      open(options).example(0, length);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return error.what();
    }
    return "";
  }

  fs::path directory_;
  std::unique_ptr<text::Tokenizer> tokenizer_ = text::make_byte_tokenizer();
};

TEST_F(TextFile, SplitsShareNoTokenAndCoverTheText) {
  const auto path = file("a.txt", "0123456789abcdefghij");
  const auto training = open({.files = {path}, .validation_fraction = 0.25});
  const auto validation = open({.files = {path}, .validation_fraction = 0.25, .split = Split::kValidation});
  EXPECT_EQ(training.tokens().size(), 15u);
  EXPECT_EQ(validation.tokens().size(), 5u);
  EXPECT_EQ(validation.tokens().front(), 'f');
  EXPECT_EQ(training.tokens().back(), 'e');
  EXPECT_EQ(open({.files = {path}, .validation_fraction = 0}).tokens().size(), 20u);
}

TEST_F(TextFile, WindowsAreContiguousAndReachBothEnds) {
  const auto source = open({.files = {file("a.txt", "0123456789")}, .validation_fraction = 0, .seed = 3});
  std::set<int64_t> starts;
  for (uint64_t index = 0; index < 200; ++index) {
    const Example example = source.example(index, 4);
    ASSERT_EQ(example.tokens.size(), 4u);
    ASSERT_EQ(example.targets.size(), 4u);
    for (int64_t t = 0; t < 4; ++t) {
      ASSERT_EQ(example.tokens[t], example.tokens[0] + t);
      ASSERT_EQ(example.targets[t], example.tokens[t] + 1);
    }
    starts.insert(example.tokens[0] - '0');
  }
  EXPECT_EQ(starts, (std::set<int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(source.example(77, 4).tokens, source.example(77, 4).tokens);
}

TEST_F(TextFile, FilesAreSeparatedByEndOfText) {
  const auto source = open({.files = {file("a.txt", "ab"), file("b.txt", "\xff\xfe")}, .validation_fraction = 0});
  EXPECT_THAT(source.tokens(), ::testing::ElementsAre('a', 'b', 256, 0xff, 0xfe));
}

TEST_F(TextFile, ErrorsNameTheFileAndTheSizes) {
  const auto small = file("small.txt", "0123456789");
  EXPECT_THAT(error_of({.files = {directory_ / "none.txt"}}, ExitCode::kInput), HasSubstr("none.txt"));
  EXPECT_THAT(error_of({.files = {directory_}}, ExitCode::kInput), HasSubstr(directory_.string()));
  EXPECT_THAT(error_of({.files = {file("empty.txt", "")}}, ExitCode::kInput), HasSubstr("empty.txt: is empty"));
  EXPECT_THAT(error_of({.files = {small}}, ExitCode::kInput, 9),
              HasSubstr("holds 9 tokens, but a sequence of 9 needs 10"));
  EXPECT_EQ(error_of({.files = {small}}, ExitCode::kInput, 8), "");
  EXPECT_THAT(error_of({.files = {}}, ExitCode::kUsage), HasSubstr("no files"));
  EXPECT_THAT(error_of({.files = {small}, .validation_fraction = 1}, ExitCode::kUsage),
              HasSubstr("validation_fraction"));
}

TEST_F(TextFile, RealTextRoundTrips) {
  const char* data = std::getenv("TAMIS_TEST_DATA");
  if (data == nullptr) GTEST_SKIP() << "TAMIS_TEST_DATA is not set: no real text to read";
  const fs::path path = fs::path(data) / "tinyshakespeare.txt";
  const auto training = open({.files = {path}});
  const auto validation = open({.files = {path}, .split = Split::kValidation});
  EXPECT_EQ(training.tokens().size() + validation.tokens().size(), fs::file_size(path));
  EXPECT_EQ(training.example(0, 512).tokens.size(), 512u);
}

}  // namespace
}  // namespace tamis::data
