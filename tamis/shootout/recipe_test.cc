#include "tamis/shootout/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tamis/shootout/testing.h"

namespace tamis::shootout {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kTwoMixers;
using testing::read;
using testing::replaced;

/// The text of the ExitCode::kUsage error that reading the recipe throws.
std::string recipe_error(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const auto [code, message] = tamis::testing::error_of([&] { read(text, overrides); });
  EXPECT_EQ(code, ExitCode::kUsage) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

/// Number of the line of `text` that begins with `begin`.
int64_t line_of(const std::string& text, const std::string& begin) {
  return 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(text.find("\n" + begin)) + 1, '\n');
}

TEST(ShootoutRecipe, ReadsEveryTable) {
  const ShootoutRecipe recipe = read(kTwoMixers);
  EXPECT_EQ(recipe.dir, "runs/small");
  EXPECT_THAT(recipe.seeds, ElementsAre(1, 2));
  EXPECT_THAT(recipe.lr, ElementsAre(0.001, 0.01, 0.1));
  EXPECT_EQ(recipe.search_steps, 80);
  EXPECT_EQ(recipe.match, "none");
  EXPECT_EQ(recipe.toml, kTwoMixers);
  ASSERT_EQ(recipe.mixers.size(), 2);
  EXPECT_EQ(recipe.mixers[0].name, "rope");
  EXPECT_EQ(recipe.mixers[0].recipe.model["pattern"], "a");
  EXPECT_EQ(recipe.mixers[1].recipe.model["pattern"], "w");
  EXPECT_EQ(recipe.mixers[1].recipe.model["window"], 8);
  EXPECT_EQ(recipe.mixers[1].recipe.train.batch_size, 4);
  EXPECT_FALSE(recipe.mixers[1].fit.has_value());
}

TEST(ShootoutRecipe, HasDefaults) {
  const ShootoutRecipe recipe =
      read(replaced(replaced(kTwoMixers, "seeds = [1, 2]\nlr = [0.001, 0.01, 0.1]\n", ""), "multiples = [1, 4]\n", ""));
  EXPECT_THAT(recipe.seeds, ElementsAre(1));
  EXPECT_THAT(recipe.lr, ElementsAre(0.05));
  EXPECT_THAT(recipe.evaluation.multiples, ElementsAre(1, 2, 4, 8, 16, 32, 64));
}

TEST(ShootoutRecipe, OverridesBecomeCommentsOfItsText) {
  const ShootoutRecipe recipe = read(kTwoMixers, {"train.steps=40", "shootout.search_steps=20"});
  EXPECT_EQ(recipe.mixers[1].recipe.train.steps, 40);
  EXPECT_EQ(recipe.search_steps, 20);
  EXPECT_EQ(recipe.toml, kTwoMixers + "# --set train.steps=40\n# --set shootout.search_steps=20\n");
}

TEST(ShootoutRecipe, TasksThatAreTrainedOnHaveTheirTrainingSettings) {
  const ShootoutRecipe recipe = read(kTwoMixers);
  EXPECT_THAT(recipe.evaluation.tasks, ElementsAre("copy", "mqrar"));
  ASSERT_EQ(recipe.tasks.size(), 2);
  EXPECT_THAT(recipe.tasks[0].lengths, ElementsAre(32, 128));
  EXPECT_EQ(recipe.tasks[0].instances, 20);
  EXPECT_EQ(recipe.tasks[1].settings.at("keys"), 2);
  EXPECT_EQ(recipe.tasks[1].settings.at("queries"), 4);
}

TEST(ShootoutRecipe, InstancesAreDividedAmongDepths) {
  const std::string evaluation = "tasks = ['needle']\nmultiples = [8, 16]\ncell_tokens = 1000\n";
  const ShootoutRecipe recipe = read(replaced(kTwoMixers, "multiples = [1, 4]\n", evaluation));
  ASSERT_EQ(recipe.tasks.size(), 1);
  EXPECT_THAT(recipe.tasks[0].lengths, ElementsAre(256, 512));
  EXPECT_THAT(recipe.tasks[0].depths, ElementsAre(0.1, 0.3, 0.5, 0.7, 0.9));
  EXPECT_EQ(recipe.tasks[0].instances, 4);
  EXPECT_EQ(recipe.tasks[0].cell_tokens, 200);
}

TEST(ShootoutRecipe, MatchesTheSizeOfTheFirstMixer) {
  const std::string wide = "\n[[mixers]]\nname = \"wide\"\nmodel = {intermediate_size = 99}\n";
  const ShootoutRecipe recipe =
      read(replaced(kTwoMixers, "[shootout]\n", "[shootout]\nmatch = \"parameters\"\n") + wide);
  const auto size = [&](size_t mixer) { return recipe.mixers[mixer].parameters.without_embedding; };
  ASSERT_TRUE(recipe.mixers[2].fit.has_value());
  EXPECT_EQ(recipe.mixers[2].fit->key, "intermediate_size");
  EXPECT_EQ(recipe.mixers[2].recipe.model["intermediate_size"], recipe.mixers[0].recipe.model["intermediate_size"]);
  EXPECT_EQ(size(2), size(0));
}

TEST(ShootoutRecipe, MixersOfOtherSizesAreRefusedWithValuesThatFit) {
  const std::string wide = "\n[[mixers]]\nname = \"wide\"\nmodel = {intermediate_size = 99}\n";
  const int64_t fitting = read(kTwoMixers).mixers[0].recipe.model["intermediate_size"];
  EXPECT_THAT(recipe_error(kTwoMixers + wide),
              HasSubstr("wide fits with model.intermediate_size = " + std::to_string(fitting)));
}

struct BadShootout {
  std::string before, after;  // the change that makes kTwoMixers wrong
  std::string line;           // the beginning of the line that the error names, in the changed recipe
  std::string expected;       // part of the error
};

class BadShootoutTest : public ::testing::TestWithParam<BadShootout> {};

TEST_P(BadShootoutTest, IsRefusedWithItsLine) {
  const auto& [before, after, line, expected] = GetParam();
  const std::string text = replaced(kTwoMixers, before, after);
  const std::string error = recipe_error(text);
  EXPECT_THAT(error, HasSubstr(expected));
  EXPECT_THAT(error, HasSubstr("small.toml:" + std::to_string(line_of(text, line)) + ": "));
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, BadShootoutTest,
    ::testing::Values(
        BadShootout{"seeds =", "sedes =", "sedes", "unknown key of [shootout] \"sedes\"; did you mean \"seeds\"?"},
        BadShootout{"[evaluation]", "[evaluations]", "[evaluations]", "unknown table \"evaluations\"; did you mean"},
        BadShootout{"seeds = [1, 2]", "seeds = [1, 1]", "seeds", "shootout.seeds holds 1 twice"},
        BadShootout{"seeds = [1, 2]", "seeds = []", "seeds", "shootout.seeds is empty"},
        BadShootout{"seeds = [1, 2]", "seeds = [-1]", "seeds", "shootout.seeds must be a whole number of at least 0"},
        BadShootout{"seeds = [1, 2]", "seeds = \"1\"", "seeds", "shootout.seeds must be a list of numbers"},
        BadShootout{"lr = [0.001, 0.01, 0.1]", "lr = []", "lr", "shootout.lr is empty"},
        BadShootout{"lr = [0.001, 0.01, 0.1]", "lr = [0.1, 0.0]", "lr", "shootout.lr: 0 trains nothing"},
        BadShootout{"[shootout]\n", "[shootout]\nmatch = 'size'\n", "match", "unknown shootout.match \"size\""},
        BadShootout{"[shootout]\n", "[shootout]\nsearch_steps = 81\n", "search_steps", "more than train.steps = 80"},
        BadShootout{"instances = 20", "instances = 0", "instances",
                    "evaluation.instances must be a whole number from 1"},
        BadShootout{"instances = 20", "tasks = ['copi']", "tasks", "\"copi\"; did you mean \"copy\"?"},
        BadShootout{"multiples = [1, 4]", "multiples = []", "multiples", "evaluation.multiples is empty"},
        BadShootout{"validate_tokens = 128", "validate_tokens = 0", "validate_tokens", "chosen by the validation loss"},
        BadShootout{"name = \"window\"", "name = \"../window\"", "[[mixers]]\nname = \"../", "must be letters, digits"},
        BadShootout{"name = \"window\"", "name = \"rope\"", "[[mixers]]\nname = \"rope\"\nmodel", "is used twice"},
        BadShootout{"name = \"window\"\n", "", "[[mixers]]\nmodel", "a name is missing"},
        BadShootout{"model = {pattern", "modle = {pattern", "modle", "unknown key of [[mixers]] \"modle\""},
        BadShootout{"model = {pattern = \"w\", window = 8}", "model = 3", "model = 3",
                    "mixers.1.model must be a table"},
        BadShootout{"window = 8}", "window = 8}\ntrain = {length = 16}",
                    "train =", "mixers.1.train.length must be the same for all mixers"},
        BadShootout{"window = 8}", "vocab_size = 512}", "model = {",
                    "model.vocab_size must be the same for all mixers"},
        BadShootout{"window = 8}", "window = 0}", "model = {", "(mixer window)"}));

TEST(ShootoutRecipe, NeedsAMixer) {
  const std::string text = kTwoMixers.substr(0, kTwoMixers.find("[[mixers]]"));
  EXPECT_THAT(recipe_error(text), HasSubstr("expected at least one table [[mixers]]"));
}

TEST(ShootoutRecipe, LengthsMustBeLongEnoughForTheirTask) {
  const std::string text = replaced(kTwoMixers, "instances = 20", "tasks = ['passkey']");
  EXPECT_THAT(recipe_error(text), HasSubstr("passkey: a length of 32 tokens is too short"));
}

TEST(ShootoutRecipe, TasksMustFitTheVocabulary) {
  const std::string text = replaced(kTwoMixers, "instances = 20", "tasks = ['mqar']");
  EXPECT_THAT(recipe_error(text), HasSubstr("mqar: its 8192 ids are more than model.vocab_size = 257"));
}

}  // namespace
}  // namespace tamis::shootout
