#include "tamis/data/copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tamis/data/testing.h"

namespace tamis::data {
namespace {

using ::testing::ElementsAre;
using testing::token_instance;

TEST(Copy, RepeatsTheSequence) {
  const auto instance = token_instance("copy", {.length = 9});
  ASSERT_EQ(instance.ids.size(), 8u);
  EXPECT_EQ(instance.ids[4], 0);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(instance.answers[i], instance.ids[i]);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(instance.ids[5 + i], instance.ids[i]);
  EXPECT_THAT(instance.answer_positions, ElementsAre(4, 5, 6, 7));
}

TEST(Copy, DrawsAllIdsExceptTheSeparator) {
  const auto instance = token_instance("copy", {.length = 4'000});
  EXPECT_EQ(std::set(instance.answers.begin(), instance.answers.end()).size(), 31u);
  const auto two = token_instance("copy", {.length = 8, .settings = {{"vocab", 2}}});
  EXPECT_THAT(two.ids, ElementsAre(1, 1, 1, 1, 0, 1, 1, 1));
}

TEST(Copy, TheShortestIsOneToken) {
  const auto instance = token_instance("copy", {.length = 2});
  EXPECT_EQ(instance.ids.size(), 2u);
  EXPECT_THAT(instance.answer_positions, ElementsAre(1));
}

}  // namespace
}  // namespace tamis::data
