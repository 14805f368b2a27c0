#include "tamis/data/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tamis/base/testing.h"
#include "tamis/data/corpus.h"
#include "tamis/text/tokenizer.h"

namespace tamis::data {
namespace {

using tamis::testing::error_of;
using tamis::testing::TemporaryDirectory;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string bytes_of(const std::filesystem::path& file) {
  return read_file(file);
}

void flip_bit(const std::filesystem::path& file, size_t at) {
  std::string bytes = bytes_of(file);
  bytes[at] ^= 4;
  std::ofstream(file, std::ios::binary) << bytes;
}

/// Documents of `length` tokens each, counting from 0 over all.
void append_documents(ShardWriter& writer, int64_t count, int64_t length) {
  for (int64_t document = 0; document < count; ++document) {
    std::vector<int64_t> tokens;
    for (int64_t i = 0; i < length; ++i) tokens.push_back((writer.tokens() + i) % 60'000);
    writer.append(tokens);
    writer.end_document();
  }
}

std::vector<int64_t> tokens_of(const TokenArray& array, int64_t first, int64_t count) {
  std::vector<int64_t> tokens(count);
  array.read(first, tokens);
  return tokens;
}

/// Reads all of a shard, and so compares every block with its checksum.
void read_all(const Shard& shard) {
  tokens_of(shard, 0, shard.size());
  shard.document_starts(0, shard.size());
}

TEST(Shard, GivesBackTokensAndDocuments) {
  const TemporaryDirectory directory;
  for (const int token_bytes : {2, 4}) {
    const auto file = directory.path() / ("a" + std::to_string(token_bytes) + ".tokens");
    ShardWriter writer(file, token_bytes, "digest");
    writer.append(std::vector<int64_t>{1, 2});
    writer.append(std::vector<int64_t>{3});
    writer.end_document();
    writer.append(std::vector<int64_t>{65'535, 0});
    writer.end_document();
    EXPECT_FALSE(std::filesystem::exists(file));
    const auto finished = writer.finish();
    EXPECT_EQ(finished.tokens, 5);
    EXPECT_EQ(finished.documents, 2);

    const Shard shard(file);
    EXPECT_EQ(shard.digest(), finished.digest);
    EXPECT_EQ(shard.tokenizer_digest(), "digest");
    EXPECT_EQ(shard.documents(), 2);
    EXPECT_THAT(tokens_of(shard, 0, 5), ElementsAre(1, 2, 3, 65'535, 0));
    EXPECT_THAT(tokens_of(shard, 2, 2), ElementsAre(3, 65'535));
    EXPECT_THAT(shard.document_starts(0, 5), ElementsAre(3, 5));
    EXPECT_THAT(shard.document_starts(0, 2), ElementsAre());
    EXPECT_THAT(shard.document_starts(2, 3), ElementsAre(3));
    EXPECT_THAT(shard.document_starts(3, 4), ElementsAre());
  }
  EXPECT_EQ(token_bytes_for(257), 2);
  EXPECT_EQ(token_bytes_for(65'536), 2);
  EXPECT_EQ(token_bytes_for(65'537), 4);
}

TEST(Shard, AWriterGoesOnWhereAnotherOneSaved) {
  const TemporaryDirectory directory;
  const auto whole = directory.path() / "whole.tokens", part = directory.path() / "part.tokens";
  {
    ShardWriter writer(whole, 2, "digest");
    append_documents(writer, 40, 30'001);
    writer.finish();
  }
  ShardProgress saved;
  for (const bool finished : {false, true}) {
    {
      ShardWriter writer(part, 2, "digest");
      append_documents(writer, 20, 30'001);
      writer.append(std::vector<int64_t>{20 * 30'001 % 60'000});  // inside a document
      writer.save();
      saved = writer.progress();
      append_documents(writer, 3, 17);  // is dropped
      if (finished) writer.finish();
    }
    ShardWriter writer(part, 2, "digest", saved);
    std::vector<int64_t> rest;
    for (int64_t i = 1; i < 30'001; ++i) rest.push_back((20 * 30'001 + i) % 60'000);
    writer.append(rest);
    writer.end_document();
    append_documents(writer, 19, 30'001);
    writer.finish();
    EXPECT_TRUE(bytes_of(part) == bytes_of(whole)) << finished;
    std::filesystem::remove(part);
  }
}

TEST(Shard, AFlippedBitAnywhereIsFound) {
  const TemporaryDirectory directory;
  const auto file = directory.path() / "a.tokens";
  {
    ShardWriter writer(file, 2, "digest");
    append_documents(writer, 100, 20'011);  // several blocks
    writer.finish();
  }
  const std::string intact = bytes_of(file);
  for (const size_t at :
       {size_t{0}, size_t{9}, size_t{13}, size_t{17}, size_t{25}, size_t{33}, size_t{41}, size_t{50}, size_t{200},
        size_t{256}, size_t{1'500'000}, size_t{3'000'000}, intact.size() - 900, intact.size() - 1}) {
    flip_bit(file, at);
    const auto [code, text] = error_of([&] { read_all(Shard(file)); });
    EXPECT_EQ(code, ExitCode::kInput) << at;
    EXPECT_THAT(text, HasSubstr(file.string()));
    std::ofstream(file, std::ios::binary) << intact;
  }
  // Only what is read is compared.
  flip_bit(file, 3'000'000);
  const Shard shard(file);
  EXPECT_EQ(tokens_of(shard, 10, 1)[0], 10);
  const auto [code, text] = error_of([&] { tokens_of(shard, 1'490'000, 20'000); });
  EXPECT_EQ(code, ExitCode::kInput);
  EXPECT_THAT(text, HasSubstr("the checksum of bytes 2097408..3145983 differs"));
}

TEST(Shard, OtherFilesAndCutOffOnesAreRefused) {
  const TemporaryDirectory directory;
  const auto file = directory.path() / "a.tokens";
  {
    ShardWriter writer(file, 2, "digest");
    append_documents(writer, 3, 100);
    writer.finish();
  }
  const std::string intact = bytes_of(file);
  for (size_t size = 0; size < intact.size(); size += size < 300 ? 1 : 50) {
    std::ofstream(file, std::ios::binary) << intact.substr(0, size);
    EXPECT_EQ(error_of([&] { const Shard shard(file); }).first, ExitCode::kInput) << size;
  }
  std::ofstream(file, std::ios::binary) << intact << "x";
  EXPECT_THAT(error_of([&] { const Shard shard(file); }).second, HasSubstr("was cut off or written to"));
  std::ofstream(file, std::ios::binary) << std::string(1000, 'x');
  EXPECT_THAT(error_of([&] { const Shard shard(file); }).second, HasSubstr("is not a token shard"));
}

TEST(Shard, AnEmptyShardIsWhole) {
  const TemporaryDirectory directory;
  const auto file = directory.path() / "a.tokens";
  ShardWriter(file, 4, "").finish();
  const Shard shard(file);
  read_all(shard);
  EXPECT_EQ(shard.size(), 0);
}

}  // namespace
}  // namespace tamis::data
