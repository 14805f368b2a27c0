#include "tamis/study/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tamis/base/files.h"
#include "tamis/study/measure.h"
#include "tamis/study/testing.h"

namespace tamis::study {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kFunction;
using testing::kTwoVariants;
using testing::read;

std::vector<std::string> job_names(const std::vector<Job>& jobs) {
  std::vector<std::string> names;
  for (const Job& job : jobs) names.push_back(job.name);
  return names;
}

/// Results of the runs of [choose] of the first point; a loss of NaN stands for a diverged run.
Results search_results(const std::vector<std::pair<std::string, double>>& losses) {
  Results results;
  for (const auto& [value, loss] : losses) {
    const bool diverged = std::isnan(loss);
    results["rope/lr-" + value] = {{"status", diverged ? "diverged" : "done"},
                                   {"rows", {{{"metric", "search_loss"}, {"value", diverged ? json() : json(loss)}}}}};
  }
  return results;
}

TEST(Jobs, OfAPointAreTheRunsOfChooseAndOnePerSeed) {
  const StudyRecipe recipe = read(kTwoVariants);
  const auto search = search_jobs(recipe, 1), final = final_jobs(recipe, 1, 1);
  EXPECT_THAT(job_names(search), ElementsAre("window/lr-0.001", "window/lr-0.01"));
  EXPECT_THAT(job_names(final), ElementsAre("window/seed-1", "window/seed-2"));
  EXPECT_EQ(search[1].directory, "runs/small/window/lr-0.01_seed-1_steps-20");
  EXPECT_EQ(final[1].directory, "runs/small/window/lr-0.01_seed-2");
  EXPECT_EQ(final[1].recipe.run.dir, "runs/small/window/lr-0.01_seed-2");
  EXPECT_EQ(final[1].recipe.train.seed, 2);
  EXPECT_EQ(final[1].recipe.train.lr, 0.01);
}

TEST(Jobs, OfChooseAreShorterWithAShorterWarmUp) {
  const auto search = search_jobs(read(kTwoVariants), 0);
  EXPECT_EQ(search[0].recipe.train.steps, 20);
  EXPECT_EQ(search[0].recipe.train.warmup_steps, 3);  // 10 / 4, rounded
}

TEST(Jobs, WithoutChooseAreTheSeeds) {
  const StudyRecipe recipe =
      read(testing::replaced(kTwoVariants, "[choose]\nvalues = [0.001, 0.01]\nsteps = 20\n", ""));
  EXPECT_TRUE(search_jobs(recipe, 0).empty());
  EXPECT_TRUE(searched(recipe, 0, {}));
  EXPECT_EQ(chosen_option(recipe, 0, {}), 0u);
  EXPECT_THAT(job_names(final_jobs(recipe, 0, 0)), ElementsAre("rope/seed-1", "rope/seed-2"));
  EXPECT_EQ(final_jobs(recipe, 0, 0)[0].directory, "runs/small/rope/seed-1");
}

/// kTwoVariants without [choose], whose second variant starts from the first; `train` are further keys of it.
std::string started(const std::string& start_from, const std::string& train) {
  const std::string text =
      testing::replaced(testing::replaced(kTwoVariants, "[choose]\nvalues = [0.001, 0.01]\nsteps = 20\n", ""),
                        "lr = 0.05", "lr = 0.05\nsave_every = 20\nkeep = 0");
  return text + "start_from = " + start_from + "\ntrain = {" + train + "}\n";
}

TEST(Jobs, StartFromTheRunOfTheSameSeed) {
  const StudyRecipe recipe = read(started("{variant = \"rope\", step = 60}", "steps = 20"));
  const auto jobs = final_jobs(recipe, 1, 0);
  EXPECT_EQ(jobs[1].after, "rope/seed-2");
  EXPECT_EQ(jobs[1].recipe.train.start_from, "runs/small/rope/seed-2/checkpoints/step-60");
  EXPECT_EQ(jobs[1].recipe.data.tokenizer, "byte");
  EXPECT_EQ(tokens_read(recipe, recipe.points[1]), 80 * 128);
  EXPECT_TRUE(final_jobs(recipe, 0, 0)[1].after.empty());
}

TEST(Jobs, StartFromACheckpointThatKeepEveryKeeps) {
  const std::string text = started("{variant = \"rope\", step = 60}", "steps = 20");
  const auto keeps = [&](const std::string& keep) { read(testing::replaced(text, "keep = 0", keep)); };
  keeps("keep = 1\nkeep_every = 60");
  const auto [code, error] = tamis::testing::error_of([&] { keeps("keep = 1\nkeep_every = 40"); });
  EXPECT_THAT(error, HasSubstr("rope keeps no checkpoint of this step"));
}

TEST(Jobs, StartFromTheLastCheckpointWithoutAStep) {
  const StudyRecipe recipe = read(
      testing::replaced(started("{variant = \"rope\"}", "steps = 30"), "[model]", "[equal]\ntokens = false\n[model]"));
  EXPECT_EQ(final_jobs(recipe, 1, 0)[0].recipe.train.start_from, "runs/small/rope/seed-1/checkpoints/step-80");
  EXPECT_EQ(tokens_read(recipe, recipe.points[1]), 110 * 128);
}

TEST(Jobs, ThatContinueTheWholeStateMakeTheRemainingSteps) {
  const StudyRecipe recipe = read(started("{variant = \"rope\", step = 60}", "start_state = \"all\""));
  EXPECT_EQ(own_steps(recipe.points[1]), 20);
  EXPECT_EQ(tokens_read(recipe, recipe.points[1]), 80 * 128);
}

TEST(Jobs, StartFromAPointWithTheSameValuesOfTheAxes) {
  const StudyRecipe recipe = read(started("{variant = \"rope\", step = 60}", "steps = 20") +
                                  "[[axes]]\nkey = \"train.lr\"\nvalues = [0.01, 0.02]\n");
  EXPECT_EQ(final_jobs(recipe, 3, 0)[0].name, "window/lr-0.02/seed-1");
  EXPECT_EQ(final_jobs(recipe, 3, 0)[0].after, "rope/lr-0.02/seed-1");
}

TEST(Jobs, OfAMatchedSizeStartFromAModelOfThatSize) {
  const std::string matched = testing::replaced(started("{variant = \"second\", step = 60}", "steps = 20"), "[model]",
                                                "[equal]\nparameters_without_embedding = 0.05\nmatch = true\n[model]");
  const StudyRecipe recipe = read(
      testing::replaced(matched, "[[variants]]\nname = \"window\"",
                        "[[variants]]\nname = \"second\"\nmodel = {pattern = \"m\"}\n[[variants]]\nname = \"window\""));
  const auto size = [&](size_t point) { return recipe.points[point].recipe().model["intermediate_size"]; };
  EXPECT_NE(size(1), size(0));
  EXPECT_EQ(size(2), size(1));
}

TEST(Jobs, OfAMatchedSizeStartFromAModelOfAnotherGroup) {
  const std::string grouped = "[[variants]]\nname = \"second\"\nlabels = {group = \"b\"}\nmodel = {pattern = \"m\"}\n";
  const std::string rule = "[equal]\nparameters_without_embedding = 0.05\nmatch = true\nwithin = \"group\"\n";
  std::string text =
      testing::replaced(started("{variant = \"third\", step = 60}", "steps = 20"), "[model]", rule + "[model]");
  text = testing::replaced(text, "labels = {position = \"rope\"}", "labels = {group = \"b\"}");
  text = testing::replaced(text, "[[variants]]\nname = \"window\"",
                           grouped + testing::replaced(grouped, "second", "third") +
                               "[[variants]]\nname = \"window\"\nlabels = {group = \"a\"}");  // the first group by name
  const StudyRecipe recipe = read(text);
  const auto size = [&](size_t point) { return recipe.points[point].recipe().model["intermediate_size"]; };
  EXPECT_NE(size(2), size(0));
  EXPECT_EQ(size(3), size(2));
}

TEST(Jobs, RefuseAStartThatCannotBe) {
  const auto error = [](const std::string& text) { return tamis::testing::error_of([&] { read(text); }); };
  const auto refusal = [&](const std::string& start_from, const std::string& train) {
    const auto [code, text] = error(started(start_from, train));
    EXPECT_EQ(code, ExitCode::kUsage);
    return text;
  };
  EXPECT_THAT(refusal("{variant = \"rop\"}", ""), HasSubstr("unknown variant before this one \"rop\"; did you mean"));
  EXPECT_THAT(refusal("{variant = \"window\"}", ""), HasSubstr("unknown variant before this one \"window\""));
  EXPECT_THAT(refusal("\"rope\"", ""), HasSubstr("start_from must be a table such as {variant = \"NAME\""));
  EXPECT_THAT(refusal("{variant = \"rope\", step = 90}", ""), HasSubstr("rope has only 80 steps"));
  EXPECT_THAT(refusal("{variant = \"rope\", step = 50}", ""), HasSubstr("rope keeps no checkpoint of this step"));
  EXPECT_THAT(refusal("{variant = \"rope\"}", "start_state = \"all\""), HasSubstr("train.steps = 80 must be larger"));
  EXPECT_THAT(refusal("{variant = \"rope\", step = 60}", ""),
              HasSubstr("rope trains on 10240 tokens, but window on 17920"));
  EXPECT_THAT(refusal("{step = 60}", ""), HasSubstr("start_from: variant is missing, the name of an earlier one"));
  EXPECT_THAT(refusal("{variant = \"rope\"}", "start_from = \"runs/other\""), HasSubstr("give one"));
  EXPECT_THAT(refusal("{variant = \"rope\", step = 60}", "start_state = \"all\", batch_tokens = 64"),
              HasSubstr("a step must have 4 sequences of 32 tokens, as of rope, but has 2 of 32"));
  EXPECT_THAT(
      error(testing::replaced(started("{variant = \"rope\", step = 60}", ""), "steps = 80", "epochs = 2")).second,
      HasSubstr("the runs of a study are compared by their steps; give train.steps"));
  const std::string third = "[[variants]]\nname = \"third\"\nstart_from = {variant = \"window\", step = 40}\n";
  EXPECT_THAT(error(started("{variant = \"rope\", step = 60}", "start_state = \"all\"") + third).second,
              HasSubstr("start_from.step = 40: window itself begins after step 60"));
  EXPECT_THAT(error(kTwoVariants + "start_from = {variant = \"rope\"}\n").second,
              HasSubstr("cannot be used with [choose]"));
  EXPECT_THAT(error("[study]\n[[variants]]\nname = \"a\"\nstart_from = {variant = \"b\"}\n").second,
              HasSubstr("this study trains none"));
}

TEST(ChosenOption, WaitsForAllRuns) {
  const StudyRecipe recipe = read(kTwoVariants);
  const Results results = search_results({{"0.001", 2.0}});
  EXPECT_FALSE(searched(recipe, 0, results));
  EXPECT_FALSE(chosen_option(recipe, 0, results).has_value());
}

TEST(ChosenOption, HasTheLowestLossAndPassesOverDivergedRuns) {
  const StudyRecipe recipe = read(kTwoVariants);
  EXPECT_EQ(chosen_option(recipe, 0, search_results({{"0.001", 2.0}, {"0.01", 1.0}})), 1u);
  EXPECT_EQ(chosen_option(recipe, 0, search_results({{"0.001", 1.0}, {"0.01", 1.0}})), 0u);
  EXPECT_EQ(chosen_option(recipe, 0, search_results({{"0.001", 2.0}, {"0.01", std::nan("")}})), 0u);
  EXPECT_FALSE(chosen_option(recipe, 0, search_results({{"0.001", std::nan("")}, {"0.01", std::nan("")}})).has_value());
}

TEST(ChosenOption, MayLieAtTheEdgeOfItsValues) {
  const StudyRecipe two = read(kTwoVariants);
  EXPECT_EQ(edge_of(two.points[0], 0), "") << "two values have no middle";
  const StudyRecipe three = read(testing::replaced(kTwoVariants, "[0.001, 0.01]", "[0.01, 0.001, 0.1]"));
  EXPECT_EQ(edge_of(three.points[0], 0), "");
  EXPECT_EQ(edge_of(three.points[0], 1), "smallest");
  EXPECT_EQ(edge_of(three.points[0], 2), "largest");
}

/// A study of a function in a directory of its own, with its only job.
struct FunctionStudy {
  explicit FunctionStudy(const std::string& text = kFunction)
      : recipe(read(text, {"study.dir=" + (directory.path() / "run").string()})), job(final_jobs(recipe, 0, 0).at(0)) {}

  std::filesystem::path file() const { return result_file(recipe, job); }
  json run() const { return run_job(recipe, job, at::kCPU, nullptr, signals); }
  /// Changes one key of the stored result.
  void store(const std::string& key, const json& value) const {
    json result = parse_stored();
    result[key] = value;
    write_file_atomic(file(), result.dump());
  }
  json parse_stored() const { return json::parse(read_file(file())); }

  tamis::testing::TemporaryDirectory directory;
  StudyRecipe recipe;
  Job job;
  train::StopSignals signals;
};

TEST(Finished, IsTheStoredResult) {
  const FunctionStudy study;
  EXPECT_FALSE(finished(study.recipe, study.job).has_value());
  const json result = study.run();
  EXPECT_EQ(result["status"], "done");
  ASSERT_EQ(result["rows"].size(), 3u);
  EXPECT_EQ(result["rows"][2]["value"], std::tanh(2));
  EXPECT_EQ(result["rows"][2]["variant"], "all");
  EXPECT_EQ(finished(study.recipe, study.job), result);
}

TEST(Finished, IsNoneForAnotherVersionOrOtherSettings) {
  const FunctionStudy study;
  study.run();
  StudyRecipe other = study.recipe;
  other.evaluations[0].settings["norm"] = json::array({5});
  EXPECT_FALSE(finished(other, study.job).has_value());
  json question = study.parse_stored()["question"];
  question["version"] = "0.0.1";
  study.store("question", question);
  EXPECT_FALSE(finished(study.recipe, study.job).has_value());
  EXPECT_EQ(study.run()["status"], "done");
  EXPECT_TRUE(finished(study.recipe, study.job).has_value());
}

TEST(Finished, IsNoneWithoutAllRowsOfAnEvaluation) {
  const StudyRecipe recipe =
      read(kTwoVariants + "\n[[evaluations]]\ntask = \"needle\"\nlengths = [300]\nneedle_score = true\n");
  const json described = describe(recipe, final_jobs(recipe, 0, 0).at(0)).at(0);
  EXPECT_EQ(described["metrics"].back(), "needle_score_trial") << "earlier results have no such rows";
  const StudyRecipe recall =
      read(kTwoVariants + "\n[[evaluations]]\nkind = \"recall\"\ntask = \"mqar\"\nlengths = [64]\n");
  EXPECT_EQ(describe(recall, final_jobs(recall, 0, 0).at(0)).at(0)["metrics"].at(2), "stale_share");
}

TEST(Finished, IsNoneForAnotherWayToReadTexts) {
  const tamis::testing::TemporaryDirectory temporary;
  const std::string a = temporary.write("a.txt", "a text").string(), b = temporary.write("b.txt", "another").string();
  const auto described = [&](const std::string& files, const std::string& more = "") {
    const StudyRecipe recipe =
        read(kTwoVariants + "\n[[evaluations]]\nkind = \"loss\"\nlengths = [8]\n" + files + "\n" + more);
    return describe(recipe, final_jobs(recipe, 0, 0).at(0)).at(0);
  };
  const std::string both = "files = [\"" + a + "\", \"" + b + "\"]";
  std::vector<json> all = {described("file = \"" + a + "\""),
                           described(both),
                           described("files = [\"" + b + "\", \"" + a + "\"]"),
                           described(both, "middle = true"),
                           described(both, "points = 4"),
                           described(both, "points = 4\nsmooth = 0.5")};
  EXPECT_EQ(described("files = [\"" + a + "\"]"), all[0]);
  const std::string folder = "files = [\"" + temporary.path().string();
  all.push_back(described(folder + "\"]"));
  all.push_back(described(folder + "/?.txt\"]"));
  EXPECT_EQ(all.back()["digest"], all[1]["digest"]) << "the same texts";
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(all[i], all[j]) << all[i];
  }
}

TEST(Finished, IsNoneForADamagedFile) {
  const FunctionStudy study;
  const json result = study.run();
  for (const json& rows : {json(3), json::array({1}), json::array({{{"metric", "m"}}}), json()}) {
    study.store("rows", rows);
    EXPECT_FALSE(finished(study.recipe, study.job).has_value()) << rows;
  }
  for (const std::string text : {"", "{", "[]", "null", "{\"status\": \"done\"}"}) {
    write_file_atomic(study.file(), text);
    EXPECT_FALSE(finished(study.recipe, study.job).has_value()) << text;
  }
  write_file_atomic(study.file(), result.dump().substr(0, 100));
  EXPECT_EQ(study.run()["rows"], result["rows"]);
}

TEST(Finished, RefusesTheResultOfAnotherRecipe) {
  const tamis::testing::TemporaryDirectory directory;
  const StudyRecipe recipe = read(kTwoVariants, {"study.dir=" + directory.path().string()});
  const Job job = final_jobs(recipe, 0, 0).at(0);
  json trained = {{"status", "done"}, {"rows", json::array()}, {"recipe", train::to_json(job.recipe)}};
  make_directories(job.directory);
  write_file_atomic(result_file(recipe, job), trained.dump());
  EXPECT_FALSE(finished(recipe, job).has_value()) << "it was measured with other settings";
  trained["recipe"]["train"]["steps"] = 7;
  write_file_atomic(result_file(recipe, job), trained.dump());
  const auto [code, message] = tamis::testing::error_of([&] { finished(recipe, job); });
  EXPECT_EQ(code, ExitCode::kUsage);
  EXPECT_THAT(message, HasSubstr("belongs to another recipe: /train/steps was 7, is 80; choose another study.dir"));
}

}  // namespace
}  // namespace tamis::study
