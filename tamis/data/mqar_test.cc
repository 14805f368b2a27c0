#include "tamis/data/mqar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tamis/base/testing.h"
#include "tamis/data/testing.h"

namespace tamis::data {
namespace {

using ::testing::HasSubstr;
using testing::token_instance;

TEST(Mqar, EveryPairHasOneQuery) {
  for (const int64_t length : {32, 33, 64, 257}) {
    for (uint64_t index = 0; index < 200; ++index) {
      const auto instance = token_instance("mqar", {.length = length, .settings = {{"vocab", 64}}}, index);
      ASSERT_EQ(static_cast<int64_t>(instance.ids.size()), length);
      std::map<int64_t, int64_t> value_of;
      std::set<int64_t> values;
      for (size_t i = 0; i < 16; i += 2) {
        ASSERT_TRUE(instance.ids[i] >= 1 && instance.ids[i] < 32 && instance.ids[i + 1] >= 32);
        ASSERT_TRUE(value_of.emplace(instance.ids[i], instance.ids[i + 1]).second) << "a key twice";
        ASSERT_TRUE(values.insert(instance.ids[i + 1]).second) << "a value twice";
      }
      std::set<int64_t> asked;
      for (int64_t t = 16; t < length; ++t) {
        ASSERT_TRUE(instance.ids[t] >= 1 && instance.ids[t] < 32) << "filler that is no key";
        if (!value_of.contains(instance.ids[t])) continue;
        ASSERT_TRUE(asked.insert(instance.ids[t]).second) << "asked for twice, or by accident";
        ASSERT_EQ(t % 2, 0);
      }
      ASSERT_EQ(asked.size(), 8u);
    }
  }
}

TEST(Mqar, MostQueriesComeEarly) {
  int64_t first_slot = 0, late_half = 0;
  for (uint64_t index = 0; index < 1'000; ++index) {
    const auto instance = token_instance("mqar", {.length = 16 + 2 * 128}, index);
    first_slot += instance.answer_positions.front() == 16;
    for (const int64_t position : instance.answer_positions) late_half += position >= 16 + 128;
  }
  EXPECT_GT(first_slot, 750);  // one draw has 18% for the first slot, eight without repeats have about 85%
  EXPECT_NEAR(late_half / 8'000.0, 0.16, 0.02);  // one draw has 12.5%, later ones more
}

TEST(Mqar, RefusesAVocabularyThatIsTooSmall) {
  const auto asked = [](int64_t pairs, int64_t vocab) {
    token_instance("mqar", {.length = 400, .settings = {{"pairs", pairs}, {"vocab", vocab}}});
  };
  EXPECT_NO_THROW(asked(8, 20));
  const auto [code, said] = tamis::testing::error_of([&] { asked(8, 19); });
  EXPECT_EQ(code, ExitCode::kUsage);
  EXPECT_THAT(said, HasSubstr("need a vocab of at least 20, but it is 19"));
}

}  // namespace
}  // namespace tamis::data
