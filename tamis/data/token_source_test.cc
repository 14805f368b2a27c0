#include "tamis/data/token_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "tamis/base/testing.h"
#include "tamis/data/mix.h"

namespace tamis::data {
namespace {

using tamis::testing::error_of;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kEnd = 1'000'000;

std::shared_ptr<const TokenArray> counting(int32_t size) {
  std::vector<int32_t> tokens(size);
  std::iota(tokens.begin(), tokens.end(), 0);
  return std::make_shared<MemoryTokens>("counting", tokens, kEnd);
}

TEST(TokenSource, EverySequenceComesOnceInAnEpoch) {
  for (const int64_t length : {1, 3, 8, 100}) {
    for (const int32_t size : {101, 102, 109, 200, 201, 1000, 4097}) {
      const TokenSource source(counting(size), {.seed = 5});
      const int64_t count = source.sequences(length);
      ASSERT_EQ(count, (size - 1) / length);
      std::vector<std::vector<int64_t>> orders;
      for (int64_t epoch = 0; epoch < 3; ++epoch) {
        std::vector<int64_t> order;
        for (int64_t i = 0; i < count; ++i) {
          const Example example = source.example(static_cast<uint64_t>(epoch * count + i), length);
          ASSERT_EQ(static_cast<int64_t>(example.tokens.size()), length);
          ASSERT_EQ(example.tokens[0] % length, 0);
          ASSERT_EQ(example.targets.back(), example.tokens[0] + length);
          ASSERT_TRUE(example.document.empty());
          order.push_back(example.tokens[0] / length);
        }
        EXPECT_EQ(std::set(order.begin(), order.end()).size(), static_cast<size_t>(count));
        orders.push_back(order);
      }
      if (count > 20) {
        EXPECT_NE(orders[0], orders[1]);
        EXPECT_NE(orders[1], orders[2]);
        const TokenSource other(counting(size), {.seed = 6});
        EXPECT_NE(other.example(0, length).tokens[0] + other.example(1, length).tokens[0] * size,
                  source.example(0, length).tokens[0] + source.example(1, length).tokens[0] * size);
      }
    }
  }
}

TEST(TokenSource, DocumentsAreNumberedAndNotPredictedFromOneAnother) {
  const auto tokens = std::make_shared<MemoryTokens>("two", std::vector<int32_t>{1, 2, 9, 3, 9, 4, 5, 9, 6}, 9);
  const Example example = read_example(*tokens, 1, 6, {.documents = true});
  EXPECT_THAT(example.tokens, ElementsAre(2, 9, 3, 9, 4, 5));
  EXPECT_THAT(example.targets, ElementsAre(9, kIgnore, 9, kIgnore, 5, 9));
  EXPECT_THAT(example.document, ElementsAre(0, 0, 1, 1, 2, 2));
  const Example last = read_example(*tokens, 2, 6, {.documents = true});
  EXPECT_THAT(last.tokens, ElementsAre(9, 3, 9, 4, 5, 9));
  EXPECT_THAT(last.targets, ElementsAre(kIgnore, 9, kIgnore, 5, 9, kIgnore));
  EXPECT_THAT(last.document, ElementsAre(0, 1, 1, 2, 2, 2));
  EXPECT_THAT(read_example(*tokens, 5, 2, {.documents = true}).document, ElementsAre(0, 0));
}

TEST(TokenSource, JoinedAndCutArraysAreOne) {
  std::vector<std::unique_ptr<TokenArray>> parts;
  parts.push_back(std::make_unique<MemoryTokens>("a", std::vector<int32_t>{1, 9, 2}, 9));
  parts.push_back(std::make_unique<MemoryTokens>("b", std::vector<int32_t>{}, 9));
  parts.push_back(std::make_unique<MemoryTokens>("c", std::vector<int32_t>{3, 9}, 9));
  parts.push_back(std::make_unique<MemoryTokens>("d", std::vector<int32_t>{4, 5, 9, 6}, 9));
  const auto joined = std::make_shared<JoinedTokens>("all", std::move(parts));
  ASSERT_EQ(joined->size(), 9);
  EXPECT_THAT(joined->document_starts(0, 9), ElementsAre(2, 5, 8));
  EXPECT_THAT(joined->document_starts(2, 5), ElementsAre(5));
  const TokenSlice slice(joined, 1, 7);
  std::vector<int64_t> tokens(7);
  slice.read(0, tokens);
  EXPECT_THAT(tokens, ElementsAre(9, 2, 3, 9, 4, 5, 9));
  EXPECT_THAT(slice.document_starts(0, 7), ElementsAre(1, 4, 7));
}

TEST(TokenSource, IdsOutsideOfTheVocabularyAreRefused) {
  const TokenSource source(counting(100), {.vocab_size = 50});
  const auto [code, text] = error_of([&] {
    for (uint64_t i = 0; i < 9; ++i) source.example(i, 10);
  });
  EXPECT_EQ(code, ExitCode::kInput);
  EXPECT_THAT(text, HasSubstr("but the tokenizer has the ids 0..49"));
  EXPECT_THAT(error_of([] { TokenSource(counting(10), {}).example(0, 10); }).second,
              HasSubstr("holds 10 tokens, but a sequence of 10 needs 11"));
}

/// In a mixture each sequential source still gives everything once in an epoch, and shares are kept closely.
TEST(TokenSource, AMixtureCountsTheExamplesOfEachPart) {
  const std::vector<double> weights = {3, 1, 0.5, 2.2};
  std::vector<MixPart> parts;
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto sampling = i == 2 ? Sampling::kRandom : Sampling::kSequential;
    parts.push_back(
        {std::make_unique<TokenSource>(counting(1001), TokenSourceOptions{.sampling = sampling}), weights[i]});
  }
  const MixSource mix(std::move(parts), 1);
  ASSERT_TRUE(mix.is_sequential());
  std::vector<uint64_t> counts(weights.size());
  for (uint64_t index = 0; index < 50'000; ++index) {
    const MixSource::Place at = mix.place(index);
    ASSERT_EQ(at.index, counts[at.part]) << index;
    ++counts[at.part];
    for (size_t part = 0; part < weights.size(); ++part) {
      ASSERT_NEAR(static_cast<double>(counts[part]), weights[part] / 6.7 * static_cast<double>(index + 1), 3.0)
          << index;
    }
  }
  const MixSource::Place far = mix.place(uint64_t{1} << 60);
  EXPECT_NEAR(static_cast<double>(far.index), weights[far.part] / 6.7 * 0x1p60, 0x1p20);
}

}  // namespace
}  // namespace tamis::data
