#include "tamis/train/run_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tamis/base/digest.h"
#include "tamis/base/testing.h"
#include "tamis/models/checkpoint.h"
#include "tamis/train/testing.h"
#include "tamis/train/trainer.h"
#include "tamis/train/training_checkpoint.h"

namespace tamis::train {
namespace {

namespace fs = std::filesystem;
using tamis::testing::error_of;
using tamis::testing::TemporaryDirectory;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A run directory with real checkpoints after 1, 2, ..., n steps.
class SavedRun {
 public:
  explicit SavedRun(int64_t steps)
      : recipe_(load_recipe(temporary_.write("tiny.toml", testing::kTinyRecipe))),
        model_(models::make_model(recipe_.model, 1)),
        data_(open_data(recipe_, *tokenizer_)),
        trainer_(recipe_, *model_, *data_.training),
        directory_(temporary_.path() / "run") {
    for (int64_t step = 0; step < steps; ++step) {
      trainer_.step(step);
      save_training_checkpoint(directory_.checkpoint(step + 1), *model_, trainer_.optimizer(), *tokenizer_,
                               {.step = step + 1, .tokens = 256 * (step + 1), .recipe = to_json(recipe_)});
    }
  }

  const RunDirectory& directory() const { return directory_; }
  const Recipe& recipe() const { return recipe_; }
  const models::Model& model() const { return *model_; }
  Trainer& trainer() { return trainer_; }

 private:
  TemporaryDirectory temporary_;
  Recipe recipe_;
  std::unique_ptr<text::Tokenizer> tokenizer_ = text::make_byte_tokenizer();
  std::unique_ptr<models::Model> model_;
  DataSet data_;
  Trainer trainer_;
  RunDirectory directory_;
};

void overwrite(const fs::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

std::string with_a_flipped_bit(std::string bytes) {
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  return bytes;
}

TEST(RunDirectory, FindsTheNewestCheckpoint) {
  const SavedRun run(3);
  EXPECT_THAT(run.directory().saved_steps(), ElementsAre(3, 2, 1));
  const auto newest = run.directory().newest_intact();
  EXPECT_EQ(newest.step, 3);
  EXPECT_TRUE(newest.damaged.empty());
  EXPECT_EQ(read_training_state(run.directory().checkpoint(3)).tokens, 768);
}

TEST(RunDirectory, DetectsItsRemoval) {
  const TemporaryDirectory temporary;
  const fs::path path = temporary.path() / "run", aside = temporary.path() / "aside";
  for (const bool replaced : {false, true}) {
    const RunDirectory directory(path);
    EXPECT_NO_THROW(directory.check_in_place());
    fs::rename(path, aside);
    if (replaced) {
      fs::create_directories(path / "checkpoints");
      overwrite(path / ".lock", "process 1");
    }
    const auto [code, text] = error_of([&] { directory.check_in_place(); });
    EXPECT_EQ(code, ExitCode::kStorage);
    EXPECT_THAT(text, HasSubstr("removed, renamed or replaced"));
    EXPECT_TRUE(directory.saved_steps().empty());
    fs::remove_all(path);
    fs::rename(aside, path);
    EXPECT_NO_THROW(directory.check_in_place());
  }
}

TEST(RunDirectory, DamageOfAnyFileIsDetected) {
  const SavedRun run(2);
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json",
                           "optimizer.safetensors", "trainer.json"}) {
    SCOPED_TRACE(name);
    const fs::path file = run.directory().checkpoint(2) / name;
    const std::string intact = read_file(file);
    for (const std::string& damaged :
         {with_a_flipped_bit(intact), intact.substr(0, intact.size() / 2), std::string()}) {
      overwrite(file, damaged);
      const auto newest = run.directory().newest_intact();
      EXPECT_EQ(newest.step, 1);
      ASSERT_EQ(newest.damaged.size(), 1);
      EXPECT_THAT(newest.damaged[0].reason, HasSubstr(name));
    }
    fs::remove(file);
    EXPECT_EQ(run.directory().newest_intact().step, 1);
    overwrite(file, intact);
    EXPECT_EQ(run.directory().newest_intact().step, 2);
  }
}

/// Several processes write the tensors in shards, whose digests they also know.
TEST(RunDirectory, DamageOfAnyShardIsDetected) {
  const SavedRun run(1);
  const fs::path checkpoint = run.directory().checkpoint(2);
  const auto shards = [](const fs::path& place) {
    std::map<std::string, std::string> digests;
    for (const char* name : {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                             "model.safetensors.index.json", "optimizer-00001-of-00001.safetensors"}) {
      overwrite(place / name, name);
      if (fs::path(name).extension() == ".safetensors") digests[name] = sha256(name);
    }
    return digests;
  };
  const auto tokenizer = text::make_byte_tokenizer();
  save_training_checkpoint(checkpoint,
                           copy_for_checkpoint(run.model(), AdamW({}, run.recipe().train), *tokenizer,
                                               {.step = 2, .recipe = to_json(run.recipe())}, /*in_shards=*/true),
                           shards);
  EXPECT_EQ(find_damage(checkpoint), "");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(checkpoint)) names.push_back(entry.path().filename().string());
  EXPECT_EQ(names.size(), 8) << "config, tokenizer, generation settings, manifest and what was added";
  for (const std::string& name : names) {
    const std::string intact = read_file(checkpoint / name);
    for (const std::string& damaged : {with_a_flipped_bit(intact), intact.substr(1)}) {
      overwrite(checkpoint / name, damaged);
      EXPECT_THAT(find_damage(checkpoint), HasSubstr(name));
    }
    fs::remove(checkpoint / name);
    EXPECT_NE(find_damage(checkpoint), "") << name;
    overwrite(checkpoint / name, intact);
  }
  overwrite(checkpoint / "model.safetensors", "read instead of the shards");
  EXPECT_EQ(find_damage(checkpoint), "trainer.json: does not list model.safetensors");
}

TEST(RunDirectory, NoIntactCheckpointIsNoCheckpoint) {
  const SavedRun run(2);
  for (const int64_t step : {1, 2}) fs::remove(run.directory().checkpoint(step) / "config.json");
  EXPECT_EQ(run.directory().newest_intact().step, std::nullopt);
  EXPECT_EQ(run.directory().newest_intact().damaged.size(), 2);
}

TEST(RunDirectory, ACheckpointThatIsAFileOrEmptyIsDamaged) {
  const SavedRun run(1);
  std::ofstream(run.directory().checkpoint(7)) << "no directory";
  fs::create_directory(run.directory().checkpoint(8));
  const auto newest = run.directory().newest_intact();
  EXPECT_EQ(newest.step, 1);
  ASSERT_EQ(newest.damaged.size(), 2);
  EXPECT_THAT(newest.damaged[0].reason, HasSubstr("trainer.json"));
  EXPECT_EQ(newest.damaged[1].reason, "is not a directory");
}

TEST(RunDirectory, DamagedCheckpointsAreSetAsideNotRemoved) {
  const SavedRun run(2);
  const fs::path aside = run.directory().set_aside(2);
  EXPECT_EQ(aside.filename(), "step-2.damaged");
  EXPECT_TRUE(fs::exists(aside / "model.safetensors"));
  EXPECT_THAT(run.directory().saved_steps(), ElementsAre(1));
  fs::create_directory(run.directory().checkpoint(2));
  EXPECT_EQ(run.directory().set_aside(2).filename(), "step-2.damaged.1");
}

TEST(RunDirectory, KeepsTheNewestCheckpoints) {
  const SavedRun run(4);
  run.directory().remove_old_checkpoints(0);
  EXPECT_THAT(run.directory().saved_steps(), ElementsAre(4, 3, 2, 1));
  run.directory().remove_old_checkpoints(1, /*keep_every=*/2);
  EXPECT_THAT(run.directory().saved_steps(), ElementsAre(4, 2));
  run.directory().remove_old_checkpoints(1);
  EXPECT_THAT(run.directory().saved_steps(), ElementsAre(4));
}

TEST(RunDirectory, RestoredOptimizerHasTheSameBits) {
  SavedRun run(2);
  AdamW restored(run.model().parameters(), run.recipe().train);
  restore_optimizer(run.directory().checkpoint(2), run.model(), restored);
  const AdamW& original = run.trainer().optimizer();
  for (size_t i = 0; i < original.parameters().size(); ++i) {
    EXPECT_TRUE(at::equal(restored.first_moments()[i], original.first_moments()[i]));
    EXPECT_TRUE(at::equal(restored.second_moments()[i], original.second_moments()[i]));
  }
}

/// A run of version 0.1 whose screening layers have no s_O and one tensor for all projections.
TEST(RunDirectory, ATrainingCheckpointOfAnEarlierVersionIsRestored) {
  const fs::path checkpoint = "tests/data/version-0.1/training/step-4";
  EXPECT_EQ(find_damage(checkpoint), "");
  const TrainingState state = read_training_state(checkpoint);
  EXPECT_EQ(state.step, 4);
  const auto model = models::load_model(checkpoint);
  EXPECT_EQ(model->config()["output_scale"], false);
  EXPECT_EQ(first_difference(state.recipe, {{"model", model->config()}}).find("model."), std::string::npos);
  Recipe recipe = read_recipe({.name = "stored", .values = state.recipe, .positions = {}});
  EXPECT_EQ(recipe.model["output_scale"], true) << "a new recipe has the scale";
  keep_stored_defaults(recipe, state.recipe["model"]);
  EXPECT_EQ(recipe.model, model->config());
  EXPECT_EQ(first_difference(state.recipe, to_json(recipe)), "") << "the run can be resumed";
  AdamW optimizer(model->parameters(), TrainRecipe{});
  restore_optimizer(checkpoint, *model, optimizer);
  const nn::SafetensorsFile stored(checkpoint / "optimizer.safetensors");
  for (size_t i = 0; i < optimizer.parameters().size(); ++i) {
    if (optimizer.parameters()[i].name != "layers.1.qkvg") continue;
    EXPECT_TRUE(optimizer.first_moments()[i].equal(stored.tensor("exp_avg.layers.1.qkvg_proj.weight")));
    EXPECT_TRUE(optimizer.second_moments()[i].equal(stored.tensor("exp_avg_sq.layers.1.qkvg_proj.weight")));
    return;
  }
  FAIL() << "no screening layer";
}

TEST(RunDirectory, OptimizerOfAnotherShapeIsRefused) {
  const SavedRun run(1);
  auto config = run.recipe().model;
  config["hidden_size"] = 24;
  const auto other = models::make_model(config, 1);
  AdamW optimizer(other->parameters(), run.recipe().train);
  const auto [code, text] = error_of([&] { restore_optimizer(run.directory().checkpoint(1), *other, optimizer); });
  EXPECT_EQ(code, ExitCode::kInput);
  EXPECT_THAT(text, HasSubstr("optimizer.safetensors: exp_avg."));
  EXPECT_THAT(text, HasSubstr("but the model needs ["));
}

TEST(RunDirectory, IsLockedByOneProcess) {
  const TemporaryDirectory temporary;
  const RunDirectory held(temporary.path() / "run");
  const auto [code, text] = error_of([&] { RunDirectory(temporary.path() / "run"); });
  EXPECT_EQ(code, ExitCode::kRuntime);
  EXPECT_THAT(text, HasSubstr("in use by another process"));
}

TEST(RunDirectory, RefusesADirectoryWithOtherFiles) {
  const TemporaryDirectory temporary;
  temporary.write("thesis.tex", "precious");
  const auto [code, text] = error_of([&] { RunDirectory{temporary.path()}; });
  EXPECT_EQ(code, ExitCode::kUsage);
  EXPECT_THAT(text, HasSubstr("contains files, but no run"));
}

TEST(RunDirectory, WritesRecipeAndRunInformation) {
  const SavedRun run(1);
  const double measured = run.directory().describe(run.recipe(), at::kCPU, 0, 1234);
  EXPECT_GT(measured, 1e8);
  EXPECT_EQ(run.directory().describe(run.recipe(), at::kCPU, 1, 1234),
            measured);  // the same machine: not measured again
  const auto described = nlohmann::json::parse(read_file(run.directory().path() / "run.json"));
  EXPECT_EQ(described["parameters"], 1234);
  EXPECT_EQ(described["resumed"].at(0).at("step"), 1);
  EXPECT_FALSE(described["machine"]["libtorch"].get<std::string>().empty());
  EXPECT_FALSE(described["command"].empty());
  EXPECT_EQ(to_json(load_recipe(run.directory().path() / "config.toml")), to_json(run.recipe()));
}

TEST(MoveRunAside, UsesTheNextUnusedName) {
  const TemporaryDirectory temporary;
  const fs::path path = temporary.path() / "run";
  EXPECT_EQ(move_run_aside(path), "");
  for (const char* expected : {"run.1", "run.2"}) {
    { const RunDirectory run(path); }
    EXPECT_EQ(move_run_aside(path).filename(), expected);
  }
}

}  // namespace
}  // namespace tamis::train
