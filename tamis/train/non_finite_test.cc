#include "tamis/train/non_finite.h"

#include <gtest/gtest.h>

namespace tamis::train {
namespace {

TEST(NonFinite, SkipsThenGoesBackThenStops) {
  NonFiniteSteps history;
  EXPECT_EQ(record_non_finite(history, 40), NonFiniteAction::kSkip);
  EXPECT_FALSE(history.is_left_out(40));
  EXPECT_EQ(record_non_finite(history, 140), NonFiniteAction::kGoBack);
  EXPECT_FALSE(history.is_left_out(39));
  EXPECT_TRUE(history.is_left_out(40) && history.is_left_out(100) && history.is_left_out(140));
  EXPECT_FALSE(history.is_left_out(141));
  EXPECT_EQ(record_non_finite(history, 150), NonFiniteAction::kStop);
}

TEST(NonFinite, StepsThatAreFarApartDoNotBelongTogether) {
  NonFiniteSteps history;
  EXPECT_EQ(record_non_finite(history, 10), NonFiniteAction::kSkip);
  EXPECT_EQ(record_non_finite(history, 111), NonFiniteAction::kSkip);
  EXPECT_EQ(record_non_finite(history, 211), NonFiniteAction::kGoBack);
  EXPECT_TRUE(history.is_left_out(111) && !history.is_left_out(110));
  EXPECT_EQ(record_non_finite(history, 500), NonFiniteAction::kSkip) << "after a hundred good steps it begins again";
}

/// Bad data at two places far apart, and no checkpoint between them.
TEST(NonFinite, EarlierRangesStayLeftOut) {
  NonFiniteSteps history;
  EXPECT_EQ(record_non_finite(history, 100), NonFiniteAction::kSkip);
  EXPECT_EQ(record_non_finite(history, 300), NonFiniteAction::kSkip);
  EXPECT_EQ(record_non_finite(history, 310), NonFiniteAction::kGoBack);
  EXPECT_EQ(record_non_finite(history, 100), NonFiniteAction::kSkip) << "met again";
  EXPECT_EQ(record_non_finite(history, 700), NonFiniteAction::kSkip);
  EXPECT_EQ(record_non_finite(history, 710), NonFiniteAction::kGoBack);
  EXPECT_TRUE(history.is_left_out(300) && history.is_left_out(310) && history.is_left_out(705));
  EXPECT_FALSE(history.is_left_out(100) || history.is_left_out(311));
  EXPECT_EQ(history.steps, (std::vector<int64_t>{100, 300, 310, 700, 710}));
}

TEST(NonFinite, ANewOneBeforeTheOthersStopsToo) {
  NonFiniteSteps history;
  record_non_finite(history, 40);
  record_non_finite(history, 50);
  EXPECT_EQ(record_non_finite(history, 30), NonFiniteAction::kStop);
}

TEST(NonFinite, ASkipDoesNotHelpAModelThatIsNotFinite) {
  NonFiniteSteps history;
  EXPECT_EQ(record_non_finite(history, 40, /*updated=*/true), NonFiniteAction::kGoBack);
  EXPECT_TRUE(history.is_left_out(40) && !history.is_left_out(39) && !history.is_left_out(41));
  EXPECT_EQ(record_non_finite(history, 45), NonFiniteAction::kGoBack);
  EXPECT_TRUE(history.is_left_out(40) && history.is_left_out(45));
  EXPECT_EQ(record_non_finite(history, 50), NonFiniteAction::kStop);
}

}  // namespace
}  // namespace tamis::train
