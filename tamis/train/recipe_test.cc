#include "tamis/train/recipe.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tamis/base/files.h"
#include "tamis/base/testing.h"
#include "tamis/models/model.h"
#include "tamis/train/recipe_fields.h"
#include "tamis/train/testing.h"
#include "tamis/train/toml.h"

namespace tamis::train {
namespace {

using nlohmann::json;
using tamis::testing::error_of;
using tamis::testing::TemporaryDirectory;
using ::testing::HasSubstr;
using testing::kTinyRecipe;

TEST(Recipe, FillsInDefaults) {
  const TemporaryDirectory directory;
  const Recipe recipe = load_recipe(directory.write("tiny.toml", kTinyRecipe));
  EXPECT_EQ(recipe.run.dir, "runs/tiny");
  EXPECT_EQ(recipe.train.batch_tokens, 256);
  EXPECT_EQ(recipe.model["vocab_size"], 257);
  EXPECT_EQ(recipe.model["max_position_embeddings"], 64);
  EXPECT_EQ(recipe.model["model_type"], "multiscreen");
  EXPECT_EQ(recipe.data.sources.at(0).name, "digits");
}

TEST(Recipe, ResolvedRecipeReadsBackTheSame) {
  const TemporaryDirectory directory;
  const Recipe recipe = load_recipe(directory.write("tiny.toml", kTinyRecipe));
  const Recipe again = load_recipe(directory.write("config.toml", to_toml(to_json(recipe))));
  EXPECT_EQ(to_json(recipe), to_json(again));
}

TEST(Recipe, PsiDefinesAModel) {
  const TemporaryDirectory directory;
  const std::string text = "[model]\npsi = 8\n[data.sources.a]\nkind = \"abc_digits\"\n";
  const Recipe recipe = load_recipe(directory.write("psi.toml", text));
  EXPECT_EQ(recipe.model["hidden_size"], 64);
  EXPECT_EQ(recipe.model["num_hidden_layers"], 8);
}

TEST(Recipe, OverridesAreTypedLikeTheFile) {
  const TemporaryDirectory directory;
  const auto file = directory.write("tiny.toml", kTinyRecipe);
  const std::vector<std::string> overrides = {"train.lr=0.0625", "run.dir=runs/other", "train.recompute=0.5",
                                              "data.sources.plays.kind=text", "data.sources.plays.files=a.txt"};
  const Recipe recipe = load_recipe(file, overrides);
  EXPECT_EQ(recipe.train.lr, 0.0625);
  EXPECT_EQ(recipe.run.dir, "runs/other");
  EXPECT_EQ(recipe.train.recompute, 0.5);
  EXPECT_THAT(recipe.data.sources.at(1).files, ::testing::ElementsAre("a.txt"));
}

/// All recipes in recipes/ except studies, which another reader reads.
TEST(Recipe, EveryShippedOneIsRead) {
  const TemporaryDirectory directory;
  const std::string file = directory.write("a.txt", "abc").string();
  std::vector<std::string> read;
  for (const auto& entry : std::filesystem::directory_iterator("recipes")) {
    if (entry.is_directory()) continue;
    const std::string name = entry.path().filename(), content = read_file(entry.path());
    if (content.find("[study]") != std::string::npos) continue;
    std::vector<std::string> own;
    for (const char* source : {"text", "plays"}) {  // recipes without a text of their own
      const bool named = content.find(fmt::format("[data.sources.{}]", source)) != std::string::npos;
      if (named && content.find("files = []") != std::string::npos)
        own.push_back(fmt::format("data.sources.{}.files={}", source, file));
    }
    const Recipe recipe = load_recipe(entry.path(), own);
    EXPECT_GT(models::count_parameters(recipe.model).total, 0) << name;
    read.push_back(name);
  }
  EXPECT_THAT(read, ::testing::IsSupersetOf({"demo.toml", "psi16.toml", "transformer.toml", "swax.toml", "ssmax.toml",
                                             "sieve.toml", "xlstm.toml"}));
}

TEST(Recipe, ATaskHasItsSettingsAsKeys) {
  const TemporaryDirectory directory;
  const auto file = directory.write("tiny.toml", kTinyRecipe + "[data.sources.pairs]\nkind = \"mqar\"\nvocab = 64\n");
  const Recipe recipe = load_recipe(file, std::vector<std::string>{"data.sources.pairs.length_min=40"});
  const data::TaskSourceOptions& task = recipe.data.sources.at(1).task;
  EXPECT_EQ(task.settings, (data::Settings{{"pairs", 8}, {"vocab", 64}}));
  EXPECT_EQ(task.length_min, 40);
  const json expected = {{"kind", "mqar"}, {"weight", 1.0},    {"pairs", 8},           {"vocab", 64},
                         {"length", 0},    {"length_min", 40}, {"answers_only", true}, {"haystack", ""}};
  EXPECT_EQ(to_json(recipe)["data"]["sources"]["pairs"], expected);
  const Recipe again = load_recipe(directory.write("config.toml", to_toml(to_json(recipe))));
  EXPECT_EQ(first_difference(to_json(recipe), to_json(again)), "");
  const Recipe other = load_recipe(file, std::vector<std::string>{"data.sources.pairs.pairs=4"});
  EXPECT_EQ(first_difference(to_json(again), to_json(other)), "data.sources.pairs.length_min was 40, is 0");
}

TEST(Recipe, ASourceOfWeightZeroIsLeftOut) {
  const TemporaryDirectory directory;
  const std::string text = kTinyRecipe + "[data.sources.pairs]\nkind = \"mqar\"\nweight = 0\n";
  const Recipe recipe = load_recipe(directory.write("tiny.toml", text));
  EXPECT_EQ(recipe.data.sources.size(), load_recipe(directory.write("alone.toml", kTinyRecipe)).data.sources.size());
  const std::vector<std::string> none = {fmt::format("data.sources.{}.weight=0", recipe.data.sources.front().name)};
  const auto error = tamis::testing::error_of([&] { load_recipe(directory.path() / "tiny.toml", none); });
  EXPECT_EQ(error.first, ExitCode::kUsage);
  EXPECT_NE(error.second.find("at least one source with a weight above 0"), std::string::npos) << error.second;
}

struct BadRecipe {
  std::string add;       // appended to the tiny recipe, which ends inside [train] at line 17
  std::string override;  // or --set
  std::string expected;
};

class BadRecipes : public ::testing::TestWithParam<BadRecipe> {};

TEST_P(BadRecipes, NameTheLineAndTheKey) {
  const TemporaryDirectory directory;
  const auto file = directory.write("tiny.toml", kTinyRecipe + GetParam().add);
  std::vector<std::string> overrides;
  if (!GetParam().override.empty()) overrides.push_back(GetParam().override);
  const auto [code, text] = error_of([&] { load_recipe(file, overrides); });
  EXPECT_EQ(code, ExitCode::kUsage);
  EXPECT_THAT(text, HasSubstr(GetParam().expected));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadRecipes,
    ::testing::Values(
        BadRecipe{"stesp = 3\n", "", "tiny.toml:18: unknown key of [train] \"stesp\"; did you mean \"steps\"?"},
        BadRecipe{"[tarin]\nlr = 1\n", "", "tiny.toml:18: unknown table \"tarin\"; did you mean \"train\"?"},
        BadRecipe{"clip = \"no\"\n", "", "tiny.toml:18: train.clip must be a number of at least 0, but is \"no\""},
        BadRecipe{"seed = 1.5\n", "", "tiny.toml:18: train.seed must be a whole number of at least 0, but is 1.5"},
        BadRecipe{"recompute = true\n", "", "train.recompute must be a number from 0 to 1, but is true"},
        BadRecipe{"betas = [0.9]\n", "", "train.betas must be a list of two numbers, but is [0.9]"},
        BadRecipe{"betas = [0.9, 1.0]\n", "", "train.betas must be a number from 0 to"},
        BadRecipe{"eps = nan\n", "", "tiny.toml:18: train.eps must be a number of at least 0"},
        BadRecipe{"schedule = \"cosin\"\n", "", "unknown train.schedule \"cosin\"; did you mean \"cosine\"?"},
        BadRecipe{"min_lr = 0.5\n", "", "tiny.toml:18: train.min_lr = 0.5 must be at most train.lr = 0.03"},
        BadRecipe{"accumulation = 3\n", "", "tiny.toml:18: train.accumulation = 3 must divide the 4 sequences"},
        BadRecipe{"batch_tokens = 640\n", "", "train.batch_size = 4 and train.batch_tokens = 640 disagree"},
        BadRecipe{"seed = 2020-01-01\n", "", "train.seed is a date or time"},
        BadRecipe{"seed =\n", "", "tiny.toml:18: "},
        BadRecipe{"[data]\ntokeniser = \"byte\"\n", "",
                  "tiny.toml:19: unknown key of [data] \"tokeniser\"; did you mean"},
        BadRecipe{"[data.sources.b]\n", "", "tiny.toml:18: data.sources.b: kind is missing"},
        BadRecipe{"[data.sources.b]\n", "", "give one of text, corpus, prompts, abc_digits, copy, "},
        BadRecipe{"[data.sources.\"a b\"]\nkind = \"copy\"\n", "",
                  "tiny.toml:18: the name of a source must be 1 to 64 letters, digits, ., +, - and _, and not begin "
                  "with a dot, but is \"a b\""},
        BadRecipe{"[data.sources.b]\nkind = \"paskey\"\n", "",
                  "tiny.toml:19: unknown data.sources.b.kind \"paskey\"; did you mean \"passkey\"?"},
        BadRecipe{"[data.sources.b]\nkind = \"passkey\"\npairs = 3\n", "", "tiny.toml:20: unknown key"},
        BadRecipe{"[data.sources.b]\nkind = \"mqar\"\npairs = 0\n", "",
                  "tiny.toml:20: data.sources.b.pairs must be a whole number from 1 to 1048576, but is 0"},
        BadRecipe{"[data.sources.b]\nkind = \"text\"\n", "", "data.sources.b: files is missing"},
        BadRecipe{"[data.sources.b]\nkind = \"text\"\nletters_min = 3\n", "", "tiny.toml:20: unknown key"},
        BadRecipe{"", "train.stesp=3", "--set train.stesp=3: unknown key of [train] \"stesp\""},
        BadRecipe{"", "train.lr=fast", "--set train.lr=fast: train.lr must be a number"},
        BadRecipe{"", "train.lr", "--set train.lr: expected key=value"},
        BadRecipe{"unit_deviation = 1\n", "model.model_type=transformer",
                  "tiny.toml:18: train.unit_deviation = 1 needs a model with screening layers"},
        BadRecipe{"start_state = \"all\"\n", "", "tiny.toml:18: train.start_state = \"all\" needs train.start_from"},
        BadRecipe{"epochs = 2\n[data.sources.b]\nkind = \"mqar\"\n", "",
                  "tiny.toml:18: train.epochs needs a single source, but the recipe has 2; give train.steps"},
        BadRecipe{"[study]\ntitle = \"Two\"\n[choose]\n", "", "a recipe of a study; run it with: tamis study "},
        BadRecipe{"", "train.lr.x=1", "the parent of \"x\" is not a table"},
        BadRecipe{"", "train=1", "--set train=1: [train] must be a table"},
        BadRecipe{"", "train.=1", "--set train.=1: a key is empty; expected table.key=value"},
        BadRecipe{"", "train..lr=1", "--set train..lr=1: a key is empty"},
        BadRecipe{"", "train.lr=" + std::string(300, 'x'), "xxx...\": train.lr must be a number"},
        BadRecipe{"", "model.hiden_size=8", "--set model.hiden_size=8: unknown model key \"hiden_size\"; did you mean"},
        BadRecipe{
            "", "model.model_type=tranformer",
            "--set model.model_type=tranformer: unknown model_type \"tranformer\"; did you mean \"transformer\"?"},
        BadRecipe{"", "model.position=rop", "--set model.position=rop: unknown position \"rop\"; did you mean"},
        BadRecipe{"", "model.hidden_size=-8", "--set model.hidden_size=-8: model: \"hidden_size\" must be"},
        BadRecipe{"", "model.vocab_size=100",
                  "model.vocab_size is 100, but the byte tokenizer has 257 tokens; give at least as many"}));

TEST(Recipe, TheVocabularyFitsTheTokenizerAndTheTasks) {
  const tamis::testing::TemporaryDirectory directory;
  const auto vocab_size = [&](const std::string& source, std::vector<std::string> overrides = {}) {
    const auto file = directory.write("tiny.toml", testing::kTinyRecipe + source);
    return load_recipe(file, overrides).model.at("vocab_size").get<int64_t>();
  };
  EXPECT_EQ(vocab_size(""), 257);
  EXPECT_EQ(vocab_size("[data.sources.b]\nkind = \"mqar\"\n"), 8192) << "the task's default vocabulary";
  EXPECT_EQ(vocab_size("[data.sources.b]\nkind = \"mqar\"\nvocab = 64\n"), 257);
  EXPECT_EQ(vocab_size("", {"model.vocab_size=50257"}), 50257);
  EXPECT_EQ(vocab_size("", {"model.vocab_size=50257", "data.tokenizer=later.json"}), 50257)
      << "a recipe with a vocab_size is read without its tokenizer";
}

TEST(Recipe, APlanSaysWhatItAssumesOfACorpusThatIsMissing) {
  const TemporaryDirectory directory;
  const auto file = directory.write("tiny.toml", kTinyRecipe + "[data.sources.books]\nkind = \"corpus\"\n");
  const auto notes = [&](std::vector<std::string> overrides) {
    return load_recipe(file, overrides, RecipeUse::kPlan).notes;
  };
  EXPECT_THAT(notes({}), ::testing::ElementsAre(HasSubstr("data.sources.books: path is not given, so the byte "
                                                          "tokenizer and model.vocab_size = 257 are assumed")));
  EXPECT_THAT(notes({"data.sources.books.path=nowhere"}),
              ::testing::ElementsAre(HasSubstr("data.sources.books: \"nowhere\" does not exist")));
  EXPECT_THAT(notes({"model.vocab_size=4096"}), ::testing::IsEmpty());
  EXPECT_THAT(notes({"data.tokenizer=byte"}), ::testing::IsEmpty());
}

TEST(Recipe, MissingFileIsAnInputError) {
  const auto [code, text] = error_of([] { load_recipe("/nowhere/recipe.toml"); });
  EXPECT_EQ(code, ExitCode::kInput);
  EXPECT_THAT(text, HasSubstr("/nowhere/recipe.toml"));
}

TEST(Recipe, IgnoresDifferencesWithoutEffect) {
  const TemporaryDirectory directory;
  const auto file = directory.write("tiny.toml", kTinyRecipe);
  const auto with = [&](std::string assignment) { return to_json(load_recipe(file, std::vector{assignment})); };
  const auto plain = to_json(load_recipe(file));
  EXPECT_EQ(first_difference(plain, plain), "");
  EXPECT_EQ(first_difference(plain, with("train.save_every=1")), "");
  EXPECT_EQ(first_difference(plain, with("run.dir=elsewhere")), "");
  EXPECT_EQ(first_difference(plain, with("run.assumptions=[\"the rate\", \"the texts\"]")), "");
  EXPECT_EQ(with("run.assumptions=[\"the rate\"]")["run"]["assumptions"], nlohmann::json({"the rate"}));
  EXPECT_EQ(first_difference(plain, with("train.steps=60")), "");
  EXPECT_EQ(first_difference(with("train.schedule=cosine"), with("train.schedule=cosine")), "");
  EXPECT_EQ(first_difference(plain, with("train.lr=0.5")), "train.lr was 0.03, is 0.5");
  EXPECT_EQ(first_difference(plain, with("model.fixed_r=0.5")), "model.fixed_r was absent, is 0.5");
  EXPECT_EQ(first_difference(plain, with("data.sources.digits.digits_max=3")),
            "data.sources.digits.digits_max was 6, is 3");
  EXPECT_EQ(first_difference(plain, with("model.model_type=transformer")),
            "model.model_type was \"multiscreen\", is \"transformer\"");
  const auto sliding = [&](const std::string& window_short, int64_t steps) {
    const std::vector<std::string> overrides = {"model.model_type=transformer", "model.pattern=w",
                                                "train.window_short=" + window_short,
                                                "train.steps=" + std::to_string(steps)};
    return to_json(load_recipe(file, overrides));
  };
  auto with_unused_setting = sliding("0", 6);
  with_unused_setting["model"]["alpha"] = 1.5;
  EXPECT_EQ(first_difference(with_unused_setting, sliding("0", 6)), "");
  auto of_earlier_version = sliding("0", 6);  // before this key existed
  of_earlier_version["train"].erase("window_short");
  EXPECT_EQ(first_difference(of_earlier_version, sliding("0", 6)), "");
  EXPECT_EQ(first_difference(of_earlier_version, sliding("3", 6)), "train.window_short was absent, is 3");
  EXPECT_EQ(first_difference(sliding("0", 6), sliding("0", 60)), "");
  EXPECT_EQ(first_difference(sliding("3", 6), sliding("3", 60)), "train.steps was 6, is 60");
  auto longer = with("train.schedule=cosine");
  longer["train"]["steps"] = 60;
  EXPECT_EQ(first_difference(with("train.schedule=cosine"), longer), "train.steps was 6, is 60");
}

TEST(Recipe, EveryKeyIsDocumented) {
  const std::string page = read_file("docs/training.md");
  const auto expect_documented = [&](const std::string& key, const auto&, const Allowed&) {
    EXPECT_THAT(page, HasSubstr("`" + key + "`"));
  };
  TrainRecipe train;
  RunRecipe run;
  SourceRecipe text, digits, passkey;
  text.kind = "text";
  digits.kind = "abc_digits";
  passkey.kind = "passkey";
  visit_fields(train, expect_documented);
  visit_fields(run, expect_documented);
  visit_fields(text, expect_documented);
  visit_fields(digits, expect_documented);
  visit_fields(passkey, expect_documented);
}

}  // namespace
}  // namespace tamis::train
