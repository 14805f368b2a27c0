#include "tamis/study/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "tamis/base/files.h"
#include "tamis/study/options.h"
#include "tamis/study/testing.h"

namespace tamis::study {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using testing::expect_study_refusals;
using ::testing::HasSubstr;
using testing::kFunction;
using testing::kTwoVariants;
using ::testing::Not;
using testing::read;
using testing::replaced;
using testing::study_error;

std::vector<std::string> point_names(const StudyRecipe& recipe) {
  std::vector<std::string> names;
  for (const Point& point : recipe.points) names.push_back(point.name);
  return names;
}

TEST(StudyRecipe, ReadsEveryTable) {
  const StudyRecipe recipe = read(kTwoVariants + R"(
[equal]
parameters_without_embedding = 0.1

[[evaluations]]
task = "copy"
multiples = [1, 4]
model = {rope_factor = [1, 4]}
where = {variant = "rope"}

[[claims]]
text = "Windows suffice"
metric = "validation_loss"
statistic = "ratio"
of = {variant = "window"}
than = {variant = "rope"}
at_most = 1.1

[[figures]]
metric = "training_loss"
x = "tokens"

[[tables]]
metric = "score"
columns = "length"
)");
  EXPECT_EQ(recipe.id, "small");
  EXPECT_EQ(recipe.title, "small");
  EXPECT_EQ(recipe.dir, "runs/small");
  EXPECT_THAT(recipe.seeds, ElementsAre(1, 2));
  EXPECT_THAT(point_names(recipe), ElementsAre("rope", "window"));
  EXPECT_EQ(recipe.points[0].columns, json({{"variant", "rope"}, {"position", "rope"}}));
  EXPECT_EQ(recipe.points[1].recipe().model["window"], 8);
  ASSERT_EQ(recipe.points[1].options.size(), 2u);
  EXPECT_EQ(recipe.points[1].options[1].recipe.train.lr, 0.01);
  EXPECT_EQ(recipe.choose->steps, 20);
  EXPECT_EQ(recipe.equal.parameters_without_embedding, 0.1);
  ASSERT_EQ(recipe.evaluations.size(), 1u);
  EXPECT_THAT(recipe.evaluations[0].task.lengths, ElementsAre(32, 128));
  EXPECT_EQ(recipe.evaluations[0].changes, (std::vector<json>{{{"rope_factor", 1}}, {{"rope_factor", 4}}}));
  ASSERT_EQ(recipe.claims.size(), 1u);
  EXPECT_EQ(recipe.claims[0].id, "claim-1");
  EXPECT_EQ(recipe.claims[0].at_most, 1.1);
  EXPECT_FALSE(recipe.claims[0].at_least.has_value());
  EXPECT_EQ(recipe.figures[0]["id"], "figure-1");
  EXPECT_EQ(recipe.figures[0]["series"], json::array({"variant"}));
  EXPECT_EQ(recipe.tables[0]["digits"], 3);
}

TEST(StudyRecipe, WithoutVariantsHasOnePoint) {
  const StudyRecipe recipe = read(kFunction);
  EXPECT_THAT(point_names(recipe), ElementsAre("all"));
  EXPECT_FALSE(recipe.model);
  EXPECT_FALSE(recipe.train);
  EXPECT_EQ(recipe.title, "A function");
}

TEST(StudyRecipe, OverridesAndTiersBecomeCommentsOfItsText) {
  const std::string text = kTwoVariants + "\n[tiers.gpu.train]\nsteps = 160\n";
  const StudyRecipe recipe = read(text, {"train.length=16"}, "gpu");
  EXPECT_EQ(recipe.points[1].recipe().train.steps, 160);
  EXPECT_EQ(recipe.points[1].recipe().train.length, 16);
  EXPECT_EQ(recipe.toml, text + "# --set train.length=16\n# --tier gpu\n");
  EXPECT_EQ(recipe.dir, "runs/small-gpu");
  EXPECT_EQ(read(text).points[0].recipe().train.steps, 80);
}

TEST(StudyRecipe, AxesAreMultiplied) {
  const StudyRecipe recipe = read(kTwoVariants + R"(
[[axes]]
key = "model.num_hidden_layers"
name = "layers"
values = [1, 2]

[[axes]]
key = "train.weight_decay"
values = [0.0, 0.05, 0.1]
)");
  ASSERT_EQ(recipe.points.size(), 12u);
  EXPECT_EQ(recipe.points[0].name, "rope/layers-1_weight_decay-0.0");
  EXPECT_EQ(recipe.points[11].name, "window/layers-2_weight_decay-0.1");
  EXPECT_EQ(recipe.points[11].columns, json({{"variant", "window"}, {"layers", 2}, {"weight_decay", 0.1}}));
  EXPECT_EQ(recipe.points[11].recipe().model["num_hidden_layers"], 2);
  EXPECT_EQ(recipe.points[11].recipe().train.weight_decay, 0.1);
}

TEST(StudyRecipe, AnAxisMaySetSeveralKeys) {
  const StudyRecipe recipe = read(kTwoVariants + R"(
[[axes]]
name = "size"
values = ["small", "large"]
set = [{model = {hidden_size = 8}}, {model = {hidden_size = 32}, train = {lr = 0.001}}]
)");
  ASSERT_EQ(recipe.points.size(), 4u);
  EXPECT_EQ(recipe.points[1].name, "rope/size-large");
  EXPECT_EQ(recipe.points[1].columns["size"], "large");
  EXPECT_EQ(recipe.points[1].recipe().model["hidden_size"], 32);
  EXPECT_EQ(recipe.points[0].recipe().model["hidden_size"], 8);
}

TEST(StudyRecipe, AVariantMayHaveItsOwnValuesOfChoose) {
  const StudyRecipe recipe = read(kTwoVariants + "choose = [0.1, 0.2, 0.3]\n");
  EXPECT_EQ(recipe.points[0].options.size(), 2u);
  ASSERT_EQ(recipe.points[1].options.size(), 3u);
  EXPECT_EQ(recipe.points[1].options[2].recipe.train.lr, 0.3);
}

const std::string kWide = "\n[[variants]]\nname = \"wide\"\nmodel = {intermediate_size = 99}\n";

TEST(EqualRule, RefusesSizesThatDifferAndNamesWhatFits) {
  const std::string text = kTwoVariants + kWide + "\n[equal]\nparameters_without_embedding = 0.02\n";
  const std::string message = study_error(text);
  EXPECT_THAT(message, HasSubstr("rope has "));
  EXPECT_THAT(message, HasSubstr("but wide has "));
  EXPECT_THAT(message, HasSubstr("more than 2% apart; model.intermediate_size = "));
  EXPECT_THAT(message, HasSubstr("equal.match = true chooses such values itself"));
  EXPECT_THAT(message, HasSubstr("small.toml:" + std::to_string(std::count(text.begin(), text.end(), '\n')) + ": "));
}

TEST(EqualRule, MatchGivesEveryPointTheSizeOfTheFirst) {
  const StudyRecipe recipe =
      read(kTwoVariants + kWide + "\n[equal]\nparameters_without_embedding = 0.02\nmatch = true\n");
  EXPECT_FALSE(recipe.points[1].fit.has_value());
  ASSERT_TRUE(recipe.points[2].fit.has_value());
  EXPECT_EQ(recipe.points[2].fit->key, "intermediate_size");
  EXPECT_EQ(recipe.points[2].parameters.without_embedding, recipe.points[0].parameters.without_embedding);
  for (const Option& option : recipe.points[2].options) EXPECT_EQ(option.recipe.model, recipe.points[2].fit->config);
}

TEST(EqualRule, WithinComparesPointsWithTheSameValueOfAColumn) {
  const std::string axes = "\n[[axes]]\nkey = \"model.num_hidden_layers\"\nname = \"layers\"\nvalues = [1, 2]\n";
  const std::string equal = "\n[equal]\nparameters_without_embedding = 0.02\n";
  EXPECT_THAT(study_error(kTwoVariants + axes + equal), HasSubstr("rope/layers-1 has"));
  EXPECT_EQ(read(kTwoVariants + axes + equal + "within = \"layers\"\n").points.size(), 4u);
  EXPECT_THAT(study_error(kTwoVariants + axes + equal + "within = \"lairs\"\n"), HasSubstr("has no column \"lairs\""));
}

TEST(EqualRule, RefusesOtherNumbersOfTokensUnlessThatIsMeant) {
  const std::string longer = kTwoVariants + "train = {steps = 90}\n";
  EXPECT_THAT(study_error(longer), HasSubstr("equal.tokens: rope trains on 10240 tokens, but window on 11520"));
  EXPECT_EQ(read(longer + "\n[equal]\ntokens = false\n").points.size(), 2u);
}

TEST(EqualRule, MatchNeedsALimit) {
  EXPECT_THAT(study_error(kTwoVariants + "\n[equal]\nmatch = true\n"),
              HasSubstr("equal.match needs equal.parameters_without_embedding"));
}

TEST(StudyRecipe, RefusesBadTables) {
  expect_study_refusals({
      {"", "small.toml:1: expected \\[model\\] and \\[data\\], or \\[\\[evaluations\\]\\]"},
      {"study = 3\n" + kFunction.substr(kFunction.find("[[eval")), "small.toml:1: study: expected a table"},
      {kFunction + "[evaluation]\n", "small.toml:8: unknown table \"evaluation\"; did you mean \"evaluations\""},
      {kFunction + "[claims]\n", "small.toml:8: expected a list of tables \\[\\[claims\\]\\]"},
      {replaced(kFunction, "title", "titel"),
       "small.toml:2: unknown key of \\[study\\] \"titel\"; did you mean \"title\""},
      {replaced(kFunction, "title = \"A function\"", "seeds = []"), "small.toml:2: study.seeds is empty"},
      {replaced(kFunction, "title = \"A function\"", "seeds = [1, 1]"), "small.toml:2: study.seeds holds 1 twice"},
      {replaced(kFunction, "title = \"A function\"", "id = \"../x\""), "small.toml:2: study.id must be letters"},
      {kFunction + "[equal]\nmatch = 1\n", "small.toml:9: equal.match must be"},
  });
}

TEST(StudyRecipe, RefusesBadTiers) {
  expect_study_refusals({
      {kFunction + "[tiers.cpu]\n", "small.toml:8: unknown tier \"cpu\""},
      {kFunction + "[tiers.gpuu]\n", "unknown tier \"gpuu\"; did you mean \"gpu\""},
      {kFunction + "[tiers]\ngpu = 3\n", "small.toml:9: tiers.gpu must be a table"},
      {"tiers = 3\n" + kFunction, "small.toml:1: \\[tiers\\] must be a table"},
  });
  EXPECT_THAT(study_error(kFunction, {}, "paper"), HasSubstr("there is no [tiers.paper]"));
}

TEST(StudyRecipe, RefusesBadVariants) {
  const std::string variant = kTwoVariants + "\n[[variants]]\n";
  expect_study_refusals({
      {variant, "small.toml:33: variants.2: expected name"},
      {variant + "name = \"a/b\"\n", "small.toml:33: variants.2: expected name"},
      {variant + "name = \"rope\"\n", "small.toml:33: variants.2: the name \"rope\" is used twice"},
      {variant + "name = \"a\"\nmodle = {}\n", "small.toml:35: unknown key of .* \"modle\"; did you mean \"model\""},
      {variant + "name = \"a\"\nmodel = 3\n", "small.toml:35: variants.2.model must be a table"},
      {variant + "name = \"a\"\nmodel = {hiden_size = 3}\n",
       "small.toml:35: .*\"hiden_size\"; did you mean \"hidden_size\".*\\(a\\)"},
      {variant + "name = \"a\"\nlabels = 3\n", "small.toml:33: variants.2.labels must be a table"},
      {variant + "name = \"a\"\nlabels = {seed = 3}\n", "variants.2.labels: all results have a column \"seed\""},
      {variant + "name = \"a\"\nchoose = []\n", "small.toml:35: variants.2.choose: expected values"},
      {kFunction + "[[variants]]\nname = \"a\"\nchoose = [1]\n", "variants.0.choose needs the table \\[choose\\]"},
  });
}

TEST(StudyRecipe, RefusesBadAxes) {
  const std::string axis = kTwoVariants + "\n[[axes]]\n";
  expect_study_refusals({
      {axis + "key = \"train.lrr\"\nvalues = [1]\n", "small.toml:33: .*\"lrr\"; did you mean \"lr\".*rope/lrr-1"},
      {axis + "key = \"study.seeds\"\nvalues = [1]\n",
       "small.toml:34: axes.0.key: \"study.seeds\" is not a key of a training recipe"},
      {axis + "key = \"lr\"\nvalues = [1]\n", "\"lr\" is not a key of a training recipe"},
      {axis + "values = [1]\n", "small.toml:33: axes.0: expected key"},
      {axis + "key = \"train.lr\"\n", "small.toml:33: axes.0: expected values"},
      {axis + "key = \"train.lr\"\nvalues = []\n", "axes.0: expected values"},
      {axis + "key = \"train.lr\"\nvalues = [1, 1.0]\n", "axes.0 holds 1.0 twice"},
      {axis + "key = \"model.pattern\"\nvalues = [\"../w\"]\n",
       "axes.0: values are names of directories, which \"../w\""},
      {axis + "key = \"train.seed\"\nvalues = [1, 2]\n", "all results have a column \"seed\""},
      {axis + "key = \"train.lr\"\nvalues = [1]\n[[axes]]\nkey = \"train.lr\"\nvalues = [2]\n",
       "small.toml:36: axes.1: the name \"lr\" is used twice"},
      {kFunction + "[[axes]]\nkey = \"train.lr\"\nvalues = [1]\n",
       "small.toml:8: \\[\\[axes\\]\\] change a \\[model\\]"},
      {axis + "name = \"size\"\nvalues = [1, 2]\nset = [{}]\n",
       "axes.0.set must have a table for each of the 2 values"},
      {axis + "name = \"size\"\nvalues = [1]\nset = [3]\n", "axes.0.set.0 must be a table"},
      {axis + "name = \"size\"\nvalues = [1]\nset = [{study = {}}]\n", "unknown table of a training recipe \"study\""},
  });
}

TEST(StudyRecipe, RefusesTooManyPoints) {
  std::string axes;
  for (const char* key : {"train.lr", "train.floor", "train.steps", "train.clip", "train.weight_decay"}) {
    axes += std::string("\n[[axes]]\nkey = \"") + key + "\"\nvalues = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]\n";
  }
  EXPECT_THAT(study_error(kTwoVariants + axes), HasSubstr("more than 10000 points"));
}

TEST(StudyRecipe, RefusesABadChoice) {
  expect_study_refusals({
      {replaced(kTwoVariants, "steps = 20", "steps = 100"),
       "small.toml:6: choose.steps = 100 is more than train.steps = 80"},
      {replaced(kTwoVariants, "steps = 20", "key = \"study.id\""),
       "small.toml:6: choose.key: \"study.id\" is not a key"},
      {replaced(kTwoVariants, "validate_tokens = 128", "validate_tokens = 0"),
       "small.toml:\\d+: train.validate_tokens = 0: train.lr is chosen by the validation loss"},
      {replaced(kTwoVariants, "[0.001, 0.01]", "[]"), "choose: expected values"},
      {replaced(kTwoVariants, "seeds = [1, 2]", "train = false"),
       "small.toml:4: \\[choose\\] compares runs, but this study trains none"},
      {kFunction + "[choose]\nvalues = [1]\n", "small.toml:8: \\[choose\\] compares runs"},
  });
}

TEST(StudyRecipe, OfAMissingFileIsAnInputError) {
  EXPECT_EQ(tamis::testing::error_of([] { load_study("missing.toml"); }).first, ExitCode::kInput);
}

TEST(StudyRecipe, ATextToMeasureIsOpenedBeforeAnythingRunsButNotForAPlan) {
  const tamis::testing::TemporaryDirectory temporary;
  const std::string loss = "\n[[evaluations]]\nkind = \"loss\"\nfile = \"nowhere.txt\"\nlengths = [8]\n";
  const auto file = temporary.write("small.toml", kTwoVariants + loss);
  const auto [code, text] = tamis::testing::error_of([&] { load_study(file); });
  EXPECT_EQ(code, ExitCode::kInput);
  EXPECT_THAT(text, HasSubstr("nowhere.txt"));
  EXPECT_EQ(load_study(file, {}, "cpu", train::RecipeUse::kPlan).evaluations.size(), 1);
}

TEST(StudyRecipe, AMissingTextComesWithTheCommandThatMakesIt) {
  const tamis::testing::TemporaryDirectory temporary;
  const std::string loss = "\n[[evaluations]]\nkind = \"loss\"\nlengths = [8]\n";
  const std::string text = replaced(kTwoVariants, "seeds = [1, 2]", "seeds = [1]\nprepare = \"scripts/books.sh\"");
  for (const std::string missing :
       {"file = \"nowhere.txt\"", "files = [\"nowhere.txt\"]", "files = [\"nowhere/*.txt\"]"}) {
    const auto file = temporary.write("small.toml", text + loss + missing + "\n");
    const auto [code, message] = tamis::testing::error_of([&] { load_study(file); });
    EXPECT_EQ(code, ExitCode::kInput);
    EXPECT_THAT(message, HasSubstr("; make the texts of this study with: scripts/books.sh")) << missing;
  }
}

TEST(StudyRecipe, ATierWithOtherDataDoesNotInheritTheCommand) {
  const tamis::testing::TemporaryDirectory temporary;
  const std::string text = replaced(kTwoVariants, "seeds = [1, 2]", "seeds = [1]\nprepare = \"scripts/books.sh\"") +
                           "\n[tiers.gpu.data.sources.text]\nkind = \"text\"\nfiles = [\"mix.txt\"]\n" +
                           "\n[tiers.paper.study]\nseeds = [3]\n";
  const auto file = temporary.write("small.toml", text);
  EXPECT_EQ(load_study(file).prepare, "scripts/books.sh");
  EXPECT_EQ(load_study(file, {}, "gpu", train::RecipeUse::kPlan).prepare, "");
  EXPECT_EQ(load_study(file, {}, "paper", train::RecipeUse::kPlan).prepare, "scripts/books.sh");
}

TEST(StudyRecipe, OnlyAMissingTextComesWithTheCommandThatMakesIt) {
  const tamis::testing::TemporaryDirectory temporary;
  const std::string prepared = replaced(kTwoVariants, "seeds = [1, 2]", "seeds = [1]\nprepare = \"scripts/books.sh\"");
  const auto message = [&](const std::string& data) {
    const std::string text = replaced(prepared, "[data.sources.copy]\nkind = \"copy\"", data);
    return tamis::testing::error_of([&] { load_study(temporary.write("small.toml", text)); }).second;
  };
  const std::string text = "[data.sources.text]\nkind = \"text\"\nfiles = [\"";
  EXPECT_THAT(message(text + "nowhere.txt\"]"), HasSubstr("make the texts of this study with: scripts/books.sh"));
  EXPECT_THAT(message(text + temporary.write("empty.txt", "").string() + "\"]"), EndsWith("is empty; expected text"));
  const std::string present = text + temporary.write("text.txt", std::string(4000, 'a')).string() + "\"]";
  EXPECT_THAT(message("[data]\ntokenizer = \"nowhere.json\"\n" + present),
              AllOf(HasSubstr("nowhere.json"), Not(HasSubstr("make the texts"))));
}

TEST(StudyRecipe, SettingsBeginALineOfATextWithoutANewlineAtItsEnd) {
  const std::string text = kTwoVariants.substr(0, kTwoVariants.size() - 1);
  EXPECT_EQ(read(text, {"train.length=16"}).toml, kTwoVariants + "# --set train.length=16\n");
}

TEST(StudyRecipe, EveryTierOfEveryShippedOneIsRead) {
  int read = 0;
  for (const char* directory : {"recipes", "recipes/studies"}) {
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      const std::string text = entry.path().extension() == ".toml" ? read_file(entry.path()) : "";
      if (text.find("\n[study]\n") == std::string::npos) continue;
      for (const std::string& tier : tiers()) {
        if (tier != tiers().front() && text.find("\n[tiers." + tier) == std::string::npos) continue;
        SCOPED_TRACE(entry.path().string() + " --tier " + tier);
        // As for `--plan`: the texts that some studies train on are not part of the project.
        EXPECT_FALSE(load_study(entry.path(), {}, tier, train::RecipeUse::kPlan).points.empty());
        ++read;
      }
    }
  }
  EXPECT_GT(read, 45);
}

}  // namespace
}  // namespace tamis::study
