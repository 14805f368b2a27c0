#include "tamis/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "tamis/base/digest.h"
#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/random.h"
#include "tamis/base/utf8.h"
#include "tamis/text/huggingface_tokenizer.h"

namespace tamis::text {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

class TokenizerFile : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() / ("tamis_tokenizer_" + std::to_string(getpid()) + ".json");
  }
  void TearDown() override { std::filesystem::remove(path_); }

  /// The error of loading `contents`.
  std::string error_of(std::string_view contents, ExitCode code = ExitCode::kInput) {
    write_file_atomic(path_, contents);
    try {
      load_tokenizer(path_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(path_.string()));
      return error.what();
    }
    return "";
  }

  static std::string changed(const std::function<void(json&)>& change) {
    json file = json::parse(make_byte_tokenizer()->to_json());
    change(file);
    return file.dump();
  }
  std::string error_after(const std::function<void(json&)>& change, ExitCode code = ExitCode::kInput) {
    return error_of(changed(change), code);
  }
  std::string name_after(const std::function<void(json&)>& change) {
    write_file_atomic(path_, changed(change));
    return load_tokenizer(path_)->name();
  }

  std::filesystem::path path_;
};

TEST(ByteTokenizer, EveryByteIsItsOwnId) {
  const auto tokenizer = make_byte_tokenizer();
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const auto ids = tokenizer->encode(all);
  ASSERT_EQ(ids.size(), 256u);
  for (int64_t byte = 0; byte < 256; ++byte) EXPECT_EQ(ids[byte], byte);
  EXPECT_EQ(tokenizer->decode(ids), all);
}

TEST(ByteTokenizer, KeepsInvalidUtf8) {
  const auto tokenizer = make_byte_tokenizer();
  Random random({1});
  std::string noise(10'000, '\0');
  for (char& c : noise) c = static_cast<char>(random.below(256));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(noise)), noise);
}

TEST(ByteTokenizer, TextNeverBecomesASpecialToken) {
  const auto tokenizer = make_byte_tokenizer();
  EXPECT_EQ(tokenizer->encode("<|endoftext|>").size(), 13u);
  EXPECT_EQ(tokenizer->decode(std::vector<int64_t>{65, 256, 66}), "A<|endoftext|>B");
}

TEST(ByteTokenizer, RefusesIdsOutOfRange) {
  const auto tokenizer = make_byte_tokenizer();
  for (const int64_t id : {int64_t{-1}, int64_t{257}, int64_t{1} << 40}) {
    try {
      tokenizer->decode(std::vector<int64_t>{65, id});
      FAIL() << id;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kInput);
      EXPECT_THAT(error.what(), HasSubstr("token 1 is " + std::to_string(id)));
    }
  }
}

TEST(ByteTokenizer, StreamsCompleteCharacters) {
  const auto tokenizer = make_byte_tokenizer();
  const std::string text = "a\u00e9\u65e5\U0001f600\xff\xe2\x82";
  const auto decoder = tokenizer->stream_decoder();
  std::string streamed;
  for (const int64_t id : tokenizer->encode(text)) {
    const std::string piece = decoder->push(id);
    EXPECT_TRUE(is_utf8(piece)) << piece;
    streamed += piece;
  }
  EXPECT_EQ(decoder->push(256), "\ufffd<|endoftext|>");
  EXPECT_EQ(streamed + decoder->finish(), "a\u00e9\u65e5\U0001f600\ufffd");
  EXPECT_THROW(decoder->push(257), Error);
}

TEST(ByteTokenizer, EncodesABatchInOrder) {
  const auto tokenizer = make_byte_tokenizer();
  std::vector<std::string> texts;
  for (int i = 0; i < 1000; ++i) texts.push_back(std::to_string(i));
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  for (const int64_t threads : {0, 1, 3}) {
    const auto ids = tokenizer->encode_batch(views, threads);
    ASSERT_EQ(ids.size(), texts.size());
    for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(tokenizer->decode(ids[i]), texts[i]);
  }
  EXPECT_TRUE(tokenizer->encode_batch({}).empty());
}

TEST(ByteTokenizer, DigestIsThatOfTheFile) {
  const auto tokenizer = make_byte_tokenizer();
  EXPECT_EQ(tokenizer->digest().size(), 64u);
  EXPECT_EQ(tokenizer->digest(), sha256(json::parse(tokenizer->to_json()).dump()));
}

TEST_F(TokenizerFile, IsHuggingFacesByteLevelAlphabet) {
  const json file = json::parse(make_byte_tokenizer()->to_json());
  const json& vocab = file["model"]["vocab"];
  EXPECT_EQ(vocab.size(), 257u);
  EXPECT_EQ(vocab["A"], 65);
  EXPECT_EQ(vocab["\u0120"], 32);  // the space of GPT-2's vocabulary
  EXPECT_EQ(vocab["\u010a"], 10);  // its newline
  EXPECT_EQ(vocab["\u0100"], 0);
  EXPECT_EQ(vocab["\u0143"], 0xad);  // the last byte without a printable form
  EXPECT_EQ(vocab["\u00ff"], 0xff);
  EXPECT_EQ(file["added_tokens"][0]["id"], 256);
}

TEST_F(TokenizerFile, IsReadBack) {
  write_file_atomic(path_, make_byte_tokenizer()->to_json());
  const auto tokenizer = load_tokenizer(path_);
  EXPECT_EQ(tokenizer->name(), "byte");
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->end_of_text(), 256);
}

TEST_F(TokenizerFile, DamagedFilesAreRefusedWithTheReason) {
  EXPECT_THAT(error_of("not json"), HasSubstr("is not JSON"));
  EXPECT_THAT(error_of(""), HasSubstr("is not JSON"));
  EXPECT_THAT(error_of("\xff\xfe"), HasSubstr("is not JSON"));
  EXPECT_THAT(error_of("[]"), HasSubstr("expected an object"));
  const std::string whole = make_byte_tokenizer()->to_json();
  EXPECT_THAT(error_of(std::string_view(whole).substr(0, whole.size() / 2)), HasSubstr("is not JSON"));
}

TEST_F(TokenizerFile, OtherFilesThanTheByteTokenizersAreNotTakenForIt) {
  const std::vector<std::function<void(json&)>> changes = {
      [](json& file) {
        file["normalizer"] = {{"type", "NFC"}};
      },
      [](json& file) { file["pre_tokenizer"]["add_prefix_space"] = true; },
      [](json& file) { file["model"]["vocab"]["A"] = 66; },
      [](json& file) { file["model"]["vocab"].erase("B"); },
      [](json& file) { file["model"]["vocab"]["extra"] = 257; },
      [](json& file) { file["model"]["merges"] = {"a b"}, file["model"]["vocab"]["ab"] = 257; },
      [](json& file) { file["model"]["dropout"] = 0.1; },
      [](json& file) { file["added_tokens"][0]["content"] = "<|end|>"; },
      [](json& file) { file.erase("added_tokens"); },
      [](json& file) {
        file["decoder"] = {{"type", "Fuse"}};
      },
      [](json& file) {
        file["truncation"] = {{"max_length", 8}, {"strategy", "LongestFirst"}, {"stride", 0}, {"direction", "Right"}};
      }};
  EXPECT_EQ(name_after([](json&) {}), "byte");
  for (size_t i = 0; i < changes.size(); ++i) {
    if (has_huggingface_tokenizers()) {
      EXPECT_EQ(name_after(changes[i]), "BPE") << i;
    } else {
      EXPECT_THAT(error_after(changes[i], ExitCode::kRuntime), HasSubstr("apt-get install cargo-web")) << i;
    }
  }
}

TEST_F(TokenizerFile, DeepNestingIsNotACrash) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  EXPECT_THAT(error_of(R"({"model": {"type": )" + deep + "}}"), HasSubstr("levels of nesting"));
}

TEST_F(TokenizerFile, DuplicateVocabularyKeysAreRefused) {
  std::string text = make_byte_tokenizer()->to_json();
  const std::string entry = "\"A\": 65,";
  ASSERT_NE(text.find(entry), std::string::npos);
  text.insert(text.find(entry), "\"A\": 66, ");
  EXPECT_THAT(error_of(text), HasSubstr("the key \"A\" comes twice"));
}

TEST_F(TokenizerFile, MissingFileAndDirectoryAreNamed) {
  for (const auto& path :
       {std::filesystem::path("/nonexistent/tokenizer.json"), std::filesystem::temp_directory_path()}) {
    try {
      load_tokenizer(path);
      FAIL() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kInput);
      EXPECT_THAT(error.what(), HasSubstr(path.string()));
    }
  }
}

/// Precompiled normalizers begin with the bytes of a trie: "/////w==" is 2^32 - 1, "CAAAAAAAAAAAAAAA" 8 of 12 bytes.
TEST_F(TokenizerFile, AMapOfMoreBytesThanItHasIsRefused) {
  const auto error = [&](const json& normalizer) {
    return error_after([&](json& file) { file["normalizer"] = normalizer; });
  };
  const auto map = [](const char* base64) { return json{{"type", "Precompiled"}, {"precompiled_charsmap", base64}}; };
  const std::string text = "\"normalizer\": its precompiled_charsmap has 6 bytes, but says 4294967295 of a trie";
  EXPECT_THAT(error(map("/////w==")), HasSubstr(text));
  EXPECT_THAT(error({{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, map("/////w==")}}}), HasSubstr(text));
  EXPECT_THAT(error(map("CAAAAAAAAAAAAAAA")), Not(HasSubstr("of a trie")));
  EXPECT_THAT(error(map("EAAAAAAAAAAAAAAA")), HasSubstr("has 12 bytes, but says 16 of a trie"));
}

}  // namespace
}  // namespace tamis::text
