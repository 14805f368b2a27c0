#include "tamis/text/huggingface_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tamis/base/error.h"
#include "tamis/base/testing.h"
#include "tamis/base/utf8.h"

namespace tamis::text {
namespace {

using nlohmann::json;
using ::tamis::testing::error_of;
using ::testing::HasSubstr;

/// Gives one text, then the end.
NextPart parts_of(std::vector<std::string> texts) {
  return [texts = std::move(texts), i = size_t{0}, now = std::string()]() mutable -> std::string_view {
    if (i == texts.size()) return {};
    now = texts[i++];
    return now;
  };
}

const std::string kText = "the cat sat on the mat, the hat; na\u00efve caf\u00e9 \u65e5\u672c\u8a9e \U0001f600\n";

std::string trained(int64_t vocab_size = 300) {
  return train_tokenizer({.vocab_size = vocab_size, .min_frequency = 1, .threads = 2}, parts_of({kText, kText})).json;
}

/// A tokenizer like LLaMA 2's: bytes for what is not in the vocabulary, and no space before the first word.
std::string byte_fallback_json() {
  json vocab = json::object();
  vocab["<unk>"] = 0;
  vocab["</s>"] = 1;
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = 2 + byte;
  for (const char* token : {"\u2581", "a", "b", "\u2581a", "\u2581b"}) vocab[token] = vocab.size();
  const json token = {{"id", 1},         {"content", "</s>"},   {"single_word", false}, {"lstrip", false},
                      {"rstrip", false}, {"normalized", false}, {"special", true}};
  const json normalizer = {{"type", "Sequence"},
                           {"normalizers",
                            {{{"type", "Prepend"}, {"prepend", "\u2581"}},
                             {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}};
  const json decoder = {{"type", "Sequence"},
                        {"decoders",
                         {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
                          {{"type", "ByteFallback"}},
                          {{"type", "Fuse"}},
                          {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
  const json model = {{"type", "BPE"},         {"unk_token", "<unk>"}, {"fuse_unk", true},
                      {"byte_fallback", true}, {"vocab", vocab},       {"merges", {"\u2581 a", "\u2581 b"}}};
  return json({{"added_tokens", {token}}, {"normalizer", normalizer}, {"decoder", decoder}, {"model", model}}).dump();
}

std::string streamed(const Tokenizer& tokenizer, const std::vector<int64_t>& ids,
                     std::span<const int64_t> context = {}) {
  const auto decoder = tokenizer.stream_decoder(context);
  std::string text;
  for (const int64_t id : ids) {
    const std::string piece = decoder->push(id);
    EXPECT_TRUE(is_utf8(piece));
    text += piece;
  }
  return text + decoder->finish();
}

class HuggingfaceTokenizer : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_huggingface_tokenizers()) GTEST_SKIP() << "this build has no cargo";
  }
  static std::unique_ptr<Tokenizer> made(std::string json) {
    return make_huggingface_tokenizer(std::move(json), "t.json", "BPE");
  }
};

TEST_F(HuggingfaceTokenizer, TrainsAByteLevelTokenizer) {
  const auto tokenizer = made(trained());
  EXPECT_LE(tokenizer->vocab_size(), 300);
  EXPECT_GT(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->end_of_text(), 0);
  const auto ids = tokenizer->encode(kText);
  EXPECT_LT(ids.size(), kText.size() / 2);
  EXPECT_EQ(tokenizer->decode(ids), kText);
  EXPECT_EQ(trained(), trained()) << "training must not depend on the order of threads";
}

TEST_F(HuggingfaceTokenizer, AnErrorOfTheTextEndsTheTraining) {
  const auto [code, text] = error_of([] {
    train_tokenizer({}, [calls = 0]() mutable -> std::string_view {
      if (++calls == 2) fail(ExitCode::kInput, "the disk is gone");
      return "some text\n";
    });
  });
  EXPECT_EQ(code, ExitCode::kInput);
  EXPECT_EQ(text, "the disk is gone");
}

TEST_F(HuggingfaceTokenizer, RecognisesAddedTokensAndReplacesInvalidUtf8) {
  const auto tokenizer = made(trained());
  const auto ids = tokenizer->encode("the<|endoftext|>cat");
  EXPECT_EQ(std::count(ids.begin(), ids.end(), tokenizer->end_of_text()), 1);
  EXPECT_EQ(tokenizer->decode(ids), "the<|endoftext|>cat");
  EXPECT_EQ(tokenizer->encode("a\xff\xe2\x82 b"), tokenizer->encode("a\ufffd\ufffd b"));
  EXPECT_EQ(tokenizer->encode(std::string_view()).size(), 0u);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(std::string_view("\0x", 2))), std::string_view("\0x", 2));
}

TEST_F(HuggingfaceTokenizer, EncodesABatchLikeEachText) {
  const auto tokenizer = made(trained());
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i) texts.push_back(kText.substr(0, static_cast<size_t>(i) % 20) + std::to_string(i));
  const auto ids = tokenizer->encode_batch(std::vector<std::string_view>(texts.begin(), texts.end()), 3);
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(ids[i], tokenizer->encode(texts[i]));
}

TEST_F(HuggingfaceTokenizer, StreamsCompleteCharacters) {
  const auto tokenizer = made(trained(257));  // without merges: every byte is a token
  EXPECT_EQ(streamed(*tokenizer, tokenizer->encode(kText)), kText);
  std::vector<int64_t> cut = tokenizer->encode("a\U0001f600");
  cut.pop_back();
  EXPECT_EQ(streamed(*tokenizer, cut), "a\ufffd");
  cut.insert(cut.end(), 300, cut.back());  // many bytes that are no character
  EXPECT_EQ(streamed(*tokenizer, cut), tokenizer->decode(cut));
}

TEST_F(HuggingfaceTokenizer, StreamingKeepsSpacesBetweenWords) {
  const auto tokenizer = made(byte_fallback_json());
  EXPECT_EQ(tokenizer->end_of_text(), 1);
  const auto ids = tokenizer->encode("a b \u20ac b");
  EXPECT_EQ(tokenizer->decode(ids), "a b \u20ac b");
  EXPECT_EQ(streamed(*tokenizer, ids), "a b \u20ac b");
  EXPECT_EQ(streamed(*tokenizer, {ids.begin() + 1, ids.end()}, {ids.data(), 1}), " b \u20ac b");
}

TEST_F(HuggingfaceTokenizer, RefusesIdsOutOfRange) {
  const auto tokenizer = made(trained());
  for (const int64_t id : {int64_t{-1}, tokenizer->vocab_size(), int64_t{1} << 40}) {
    const auto [code, text] = error_of([&] { tokenizer->decode(std::vector<int64_t>{65, id}); });
    EXPECT_EQ(code, ExitCode::kInput);
    EXPECT_THAT(text, HasSubstr("t.json: token 1 is " + std::to_string(id)));
  }
}

TEST_F(HuggingfaceTokenizer, RefusesWhatItCannotUse) {
  const auto refused = [](const json& file) {
    const auto [code, text] = error_of([&] { made(file.dump()); });
    EXPECT_EQ(code, ExitCode::kInput);
    EXPECT_THAT(text, HasSubstr("t.json: "));
    EXPECT_EQ(text.find('\n'), text.npos);
    return text;
  };
  EXPECT_THAT(refused(json::object()), HasSubstr("tokenizers: it has no \"model\""));
  EXPECT_THAT(refused({{"model", 3}}), HasSubstr("\"model\" must be an object, but is 3"));
  EXPECT_THAT(refused({{"model", {{"type", "Bpe"}}}}),
              HasSubstr("\"model\": unknown type \"Bpe\". Known: BPE, WordPiece"));
  EXPECT_THAT(refused({{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}}}}}}),
              HasSubstr("\"model\" of the type BPE has no \"merges\""));
  const json model = {{"type", "BPE"}, {"vocab", {{"a", 0}}}, {"merges", json::array()}};
  EXPECT_THAT(
      refused({{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}}}, {"merges", json::parse(R"([["a", "b"]])")}}}}),
      HasSubstr("Token `b` out of vocabulary"));
  EXPECT_THAT(refused({{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}}}, {"merges", 3}}}}),
              HasSubstr("\"merges\" of the model must be a list of pairs of tokens"));
  EXPECT_THAT(refused({{"model", model}, {"decoder", 7}}), HasSubstr("\"decoder\" must be an object, but is 7"));
  EXPECT_THAT(refused({{"model", model}, {"pre_tokenizer", {{"type", "ByteLevl"}}}}),
              HasSubstr("\"pre_tokenizer\": unknown type \"ByteLevl\"; did you mean \"ByteLevel\"?"));
  const json sequence = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", "Lower"}}}}};
  EXPECT_THAT(refused({{"model", model}, {"normalizer", sequence}}),
              HasSubstr("\"normalizer\": unknown type \"Lower\""));
  json split = {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", std::string(10'000, 'x')}};
  const std::string long_name = refused({{"model", model}, {"pre_tokenizer", split}});
  EXPECT_THAT(long_name, HasSubstr("unknown variant `xxx"));
  EXPECT_LT(long_name.size(), 600);
  split["behavior"] = "PostProcessorUntagged";  // a name in the library's messages
  EXPECT_THAT(refused({{"model", model}, {"pre_tokenizer", split}, {"post_processor", nullptr}}),
              HasSubstr("unknown variant `PostProcessorUntagged`"));
  EXPECT_THAT(refused({{"model", model}, {"pre_tokenizer", {{"pattern", 3}}}}),
              HasSubstr("\"pre_tokenizer\" has no \"type\", and its settings are those of none"));
  refused({{"model", {{"type", "BPE"}, {"vocab", {{"a", -1}}}, {"merges", json::array()}}}});
  EXPECT_THAT(refused({{"model", {{"type", "BPE"}, {"vocab", json::object()}, {"merges", json::array()}}}}),
              HasSubstr("vocabulary is empty"));
  EXPECT_THAT(refused({{"model", {{"type", "BPE"}, {"vocab", {{"a", 4294967295}}}, {"merges", json::array()}}}}),
              HasSubstr("largest id is 4294967295"));
}

}  // namespace
}  // namespace tamis::text
