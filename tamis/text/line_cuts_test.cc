#include "tamis/text/line_cuts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "tamis/base/json.h"
#include "tamis/text/huggingface_tokenizer.h"

namespace tamis::text {
namespace {

using nlohmann::json;

constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

json split(const json& pattern, const char* behavior = "Isolated") {
  return {{"type", "Split"}, {"pattern", pattern}, {"behavior", behavior}, {"invert", false}};
}

json sequence(const char* list, const json& members) {
  return {{"type", "Sequence"}, {list, members}};
}

json added(const std::string& content, const json& changes = json::object()) {
  json token = {{"id", 0},         {"content", content},  {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", true}};
  token.update(changes);
  return token;
}

/// Entries for letters, line ends in GPT-2's alphabet, and `more`.
json vocabulary(const std::vector<std::string>& more = {}) {
  json vocab = json::object();
  for (const char letter : kAsciiAlphanumeric) vocab[std::string(1, letter)] = vocab.size();
  for (const char* each : {"\u010a", "\u010d", "\n", "\r", "\u0120", " ", "."}) vocab[each] = vocab.size();
  for (const std::string& token : more) vocab[token] = vocab.size();
  return vocab;
}

/// A tokenizer that has these parts in place of those of a byte-level BPE with GPT-2's words.
json with(const json& parts) {
  json file = {{"version", "1.0"},
               {"added_tokens", json::array()},
               {"normalizer", nullptr},
               {"pre_tokenizer", byte_level(true)},
               {"model", {{"type", "BPE"}, {"vocab", vocabulary()}, {"merges", json::array()}}}};
  file.update(parts);
  return file;
}

json bpe(const std::vector<std::string>& more, const json& settings = json::object()) {
  json model = {{"type", "BPE"}, {"vocab", vocabulary(more)}, {"merges", json::array()}};
  model.update(settings);
  return model;
}

std::string all_but(std::string_view letters) {
  std::string rest(kAsciiAlphanumeric);
  std::erase_if(rest, [&](char c) { return letters.find(c) != letters.npos; });
  return rest;
}

TEST(LineCuts, WordsThatEndAtLineEndsAllowThemAll) {
  for (const json& parts : std::vector<json>{
           json::object(),
           {{"normalizer", {{"type", "NFC"}}}},
           {{"pre_tokenizer", {{"type", "WhitespaceSplit"}}}, {"model", {{"type", "Unigram"}}}},
           {{"pre_tokenizer", {{"type", "BertPreTokenizer"}}}, {"normalizer", {{"type", "BertNormalizer"}}}},
           {{"pre_tokenizer", sequence("pretokenizers", {split({{"Regex", kLlama3}}), byte_level(false)})}},
           {{"pre_tokenizer",
             sequence("pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, byte_level(true)})}},
           {{"model", bpe({"e\u010a"})}},  // never made
       }) {
    EXPECT_EQ(letters_before_cuts(with(parts)), kAsciiAlphanumeric) << parts;
  }
}

TEST(LineCuts, WithoutWordsTheVocabularyDecides) {
  const auto letters = [](const json& model, const json& words = byte_level(false)) {
    return letters_before_cuts(with({{"pre_tokenizer", words}, {"model", model}}));
  };
  EXPECT_EQ(letters(bpe({})), kAsciiAlphanumeric);
  EXPECT_EQ(letters(bpe({"the\u010a", "7\u010d\u010a"})), all_but("eE7"));
  EXPECT_EQ(letters(bpe({"the\n"}), json()), all_but("eE")) << "no byte level";
  EXPECT_EQ(letters(bpe({"e\u010a"}), json()), kAsciiAlphanumeric) << "a letter of Maltese";
  EXPECT_EQ(letters(bpe({"k<0x0A>"}), json()), all_but("kK"));
  EXPECT_EQ(letters(bpe({"<unk>", "s<unk>"}, {{"unk_token", "<unk>"}}), json()), all_but("sS"));
  EXPECT_EQ(letters(bpe({"the\n"}), split({{"String", " "}}, "MergedWithPrevious")), all_but("eE"));
  json small = bpe({});
  small["vocab"].erase("q");
  EXPECT_EQ(letters(small), all_but("qQ"));
  for (const json& settings : std::vector<json>{{{"ignore_merges", true}},
                                                {{"end_of_word_suffix", "</w>"}},
                                                {{"continuing_subword_prefix", "##"}},
                                                {{"type", "Unigram"}}}) {
    EXPECT_EQ(letters(bpe({}, settings)), "") << settings;
  }
}

TEST(LineCuts, AddedTokensDecideToo) {
  const auto letters = [](const json& token, const json& normalizer = json()) {
    return letters_before_cuts(with({{"added_tokens", {token}}, {"normalizer", normalizer}}));
  };
  EXPECT_EQ(letters(added("<|endoftext|>")), kAsciiAlphanumeric);
  EXPECT_EQ(letters(added("\n\n")), kAsciiAlphanumeric);
  EXPECT_EQ(letters(added("the\n")), all_but("eE"));
  EXPECT_EQ(letters(added("END", {{"rstrip", true}})), all_but("dD"));
  EXPECT_EQ(letters(added("<mask>", {{"lstrip", true}, {"rstrip", true}})), kAsciiAlphanumeric);
  EXPECT_EQ(letters(added("\n", {{"single_word", true}})), "");
  EXPECT_EQ(letters(added("two words", {{"normalized", true}})), kAsciiAlphanumeric);
  EXPECT_EQ(letters(added("two words", {{"normalized", true}}), {{"type", "NFC"}}), "");
}

TEST(LineCuts, NothingIsKnownOfOtherParts) {
  const json prepend = {{"type", "Prepend"}, {"prepend", "_"}};
  for (const json& parts : std::vector<json>{
           {{"normalizer", prepend}},
           {{"normalizer", sequence("normalizers", {{{"type", "NFC"}}, prepend})}},
           {{"normalizer", {{"type", "Replace"}, {"pattern", {{"String", "\n"}}}, {"content", " "}}}},
           {{"normalizer", {{"type", "Replace"}, {"pattern", {{"Regex", " +"}}}, {"content", " "}}}},
           {{"normalizer", {{"type", "BertNormalizer"}}}},  // with ByteLevel: spaces for line ends
           {{"pre_tokenizer", {{"type", "FixedLength"}, {"length", 5}}}},
           {{"pre_tokenizer", {{"type", "Metaspace"}, {"prepend_scheme", "first"}}}},
           {{"pre_tokenizer", split({{"Regex", "(?s).{1,7}"}})}},
           {{"pre_tokenizer", split({{"Regex", kLlama3}}, "MergedWithNext")}},
           {{"pre_tokenizer", split({{"String", "e\n"}})}},
           {{"pre_tokenizer", sequence("pretokenizers", {byte_level(false), split({{"Regex", kLlama3}})})}},
           {{"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}}}},
       }) {
    EXPECT_EQ(letters_before_cuts(with(parts)), "") << parts;
  }
  EXPECT_EQ(letters_before_cuts(
                with({{"normalizer", {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}})),
            kAsciiAlphanumeric);
  EXPECT_EQ(letters_before_cuts(json::parse(make_byte_tokenizer()->to_json())), kAsciiAlphanumeric);
}

/// Texts of pieces that are hard to split, cut at every place that is allowed.
void expect_ids_of_the_whole(const json& file) {
  SCOPED_TRACE(file.dump().substr(0, 400));
  const auto tokenizer = make_huggingface_tokenizer(file.dump(), "t.json", "BPE");
  const std::string letters = letters_before_cuts(parse_json(tokenizer->to_json(), "t.json"));
  ASSERT_FALSE(letters.empty());
  const std::vector<std::string> pieces = {"the",          "\n", "\r\n", " ",     "  ",   "cat", "7",
                                           "1234",         "'s", "\t",   ".\n ",  "e",    "!",   "mat",
                                           "\u65e5\u672c", "E",  "\n\n", "naïve", "<|x|>"};
  std::minstd_rand chance(5);
  int64_t cuts = 0;
  for (int i = 0; i < 60; ++i) {
    std::string text;
    for (int j = 0; j < 40; ++j) text += pieces[chance() % pieces.size()];
    const auto whole = tokenizer->encode(text);
    for (size_t at = 1; at < text.size(); ++at) {
      if ((text[at] != '\n' && text[at] != '\r') || letters.find(text[at - 1]) == letters.npos) continue;
      auto ids = tokenizer->encode(text.substr(0, at));
      const auto rest = tokenizer->encode(text.substr(at));
      ids.insert(ids.end(), rest.begin(), rest.end());
      ASSERT_EQ(ids, whole) << json(text) << " at " << at;
      ++cuts;
    }
  }
  EXPECT_GT(cuts, 50);
}

TEST(LineCuts, IdsAreThoseOfTheWhole) {
  if (!has_huggingface_tokenizers()) GTEST_SKIP() << "this build has no cargo";
  const std::string text = "the cat sat on the mat\nthe cat\r\nnaïve 1234 7\n'The mat's mate\n\n";
  const TrainedTokenizer trained =
      train_tokenizer({.vocab_size = 330, .min_frequency = 1, .threads = 1},
                      [&, calls = 0]() mutable { return ++calls == 1 ? std::string_view(text) : std::string_view(); });
  json gpt2 = json::parse(trained.json);
  gpt2["added_tokens"].push_back(added("<|x|>", {{"id", 330}, {"lstrip", true}, {"rstrip", true}}));
  expect_ids_of_the_whole(gpt2);
  json llama3 = gpt2;
  llama3["pre_tokenizer"] = sequence("pretokenizers", {split({{"Regex", kLlama3}}), byte_level(false)});
  llama3["model"]["ignore_merges"] = true;
  expect_ids_of_the_whole(llama3);
  json whole_lines = gpt2;  // merges reach from words to line ends
  whole_lines["pre_tokenizer"] = byte_level(false);
  json& model = whole_lines["model"];
  for (const auto& [left, right] : {std::pair("e", "\u010a"), {"t", "\u010a"}, {"\u010a", "t"}, {"\u0120", "the"}}) {
    if (!model["vocab"].contains(std::string(left) + right))
      model["vocab"][std::string(left) + right] = 331 + model["merges"].size();
    model["merges"].insert(model["merges"].begin(), json::array({left, right}));
  }
  EXPECT_EQ(letters_before_cuts(whole_lines), all_but("eEtT"));
  expect_ids_of_the_whole(whole_lines);
}

}  // namespace
}  // namespace tamis::text
