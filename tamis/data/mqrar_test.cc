#include "tamis/data/mqrar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tamis/base/testing.h"
#include "tamis/data/testing.h"

namespace tamis::data {
namespace {

using ::testing::HasSubstr;
using testing::token_instance;

TEST(Mqrar, QueriesAskForTheLatestValue) {
  for (const int64_t length : {48, 49, 64, 513}) {
    const int64_t pairs = (length - 16) / 2;
    for (uint64_t index = 0; index < 200; ++index) {
      const auto instance = token_instance("mqrar", {.length = length}, index);
      ASSERT_EQ(static_cast<int64_t>(instance.ids.size()), 2 * pairs + 16);
      std::map<int64_t, std::vector<int64_t>> values_of;
      for (int64_t i = 0; i < pairs; ++i) {
        const int64_t key = instance.ids[2 * i], value = instance.ids[2 * i + 1];
        ASSERT_TRUE(key >= 1 && key < 128 && value >= 128 && value < 256);
        auto& values = values_of[key];
        ASSERT_TRUE(values.empty() || values.back() != value) << "assigned what it had";
        values.push_back(value);
      }
      ASSERT_EQ(values_of.size(), 8u);
      for (const auto& [key, values] : values_of) ASSERT_GE(values.size(), 2u);
      ASSERT_EQ(instance.ids[2 * pairs], 0);
      ASSERT_EQ(instance.answers.size(), 15u);
      for (size_t i = 0; i < 15; ++i) {
        ASSERT_EQ(instance.answer_positions[i], 2 * pairs + 1 + static_cast<int64_t>(i));
        ASSERT_EQ(instance.answers[i], values_of.at(instance.ids[instance.answer_positions[i]]).back());
      }
    }
  }
}

TEST(Mqrar, ItsSizesAreSettings) {
  const auto instance =
      token_instance("mqrar", {.length = 11, .settings = {{"keys", 2}, {"queries", 2}, {"vocab", 6}}});
  EXPECT_EQ(instance.ids.size(), 11u);
  EXPECT_EQ(instance.answers.size(), 2u);
}

TEST(Mqrar, RefusesAVocabularyThatIsTooSmall) {
  const auto asked = [](int64_t keys, int64_t vocab) {
    token_instance("mqrar", {.length = 400, .settings = {{"keys", keys}, {"vocab", vocab}}});
  };
  EXPECT_NO_THROW(asked(8, 18));
  const auto [code, said] = tamis::testing::error_of([&] { asked(8, 17); });
  EXPECT_EQ(code, ExitCode::kUsage);
  EXPECT_THAT(said, HasSubstr("need a vocab of at least 18, but it is 17"));
}

}  // namespace
}  // namespace tamis::data
