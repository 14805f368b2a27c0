#include "tamis/study/plan.h"

#include <gtest/gtest.h>

#include "tamis/study/testing.h"

namespace tamis::study {
namespace {

using nlohmann::json;

TEST(StudyPlan, AddsUpTheTokensOfAllJobs) {
  const json plan = plan_study(testing::read(testing::kTwoVariants), "cpu", {});
  // For each of two variants: two searches of 20 steps, two seeds of 80.
  EXPECT_EQ(plan["jobs"], 2 * (2 + 2));
  EXPECT_EQ(plan["tokens"], 2 * (2 * 20 + 2 * 80) * 128);
  EXPECT_EQ(plan["flops"], plan["points"][0]["flops"].get<double>() + plan["points"][1]["flops"].get<double>());
}

TEST(StudyPlan, SaysTheWorkInOneLine) {
  json plan = {{"jobs", 24}, {"tokens", 6.6e12}, {"flops", 1.82e22}, {"points", json::array()}};
  for (const int64_t parameters : {44609024, 1310935040, 4134146}) {
    plan["points"].push_back({{"parameters", parameters}});
  }
  EXPECT_EQ(
      planned_work(plan, 5e14),
      "24 jobs, models of 4.13M to 1.31G parameters, 6.6T tokens, 1.82e+22 floating-point operations, 421 days at "
      "the machine's peak");
  EXPECT_TRUE(planned_work(plan, 1e16).ends_with(", 505h33m at the machine's peak"));
  plan["points"] = {{{"parameters", 147456}}, {{"parameters", 147462}}};
  plan["flops"] = 3e12;
  EXPECT_EQ(
      planned_work(plan, 1e11),
      "24 jobs, models of 147k parameters, 6.6T tokens, 3T floating-point operations, 30.0s at the machine's peak");
}

TEST(StudyPlan, OfFunctionsIsTheirNumber) {
  const json plan = plan_study(testing::read(testing::kFunction), "cpu", {});
  EXPECT_EQ(planned_work(plan, 0), "1 job");
  EXPECT_EQ(plan_text(plan), plan["dir"].get<std::string>() + ": 1 job\n\nall\n  all/functions\n");
}

}  // namespace
}  // namespace tamis::study
