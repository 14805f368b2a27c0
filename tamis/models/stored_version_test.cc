// Checkpoints and decoding states that an earlier version wrote (tests/data/version-0.1).

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tamis/models/checkpoint.h"
#include "tamis/models/model.h"
#include "tamis/models/model_config.h"
#include "tamis/models/testing.h"
#include "tamis/nn/safetensors.h"

namespace tamis::models {
namespace {

using at::Tensor;
using testing::expect_near;

constexpr int64_t kSeen = 40;  // tokens in the saved states

class StoredVersion : public ::testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path directory = std::filesystem::path("tests/data/version-0.1") / GetParam();
  std::unique_ptr<Model> model = load_model(directory);
  nn::SafetensorsFile expected{directory / "expected.safetensors"};
  Tensor tokens = expected.tensor("tokens").to(at::kLong);

  /// The saved state after `kSeen` tokens, then the rest in one chunk and again token by token.
  void expect_continues(const std::string& file, const ForwardOptions& options, const Tensor& hidden_TD) const {
    for (const bool token_by_token : {false, true}) {
      std::ifstream in(directory / file, std::ios::binary);
      const auto state = model->new_state(options);
      state->load(in);
      EXPECT_EQ(state->position(), kSeen);
      DecodingState* const states[] = {state.get()};
      std::vector<Tensor> parts;
      for (const Tensor& chunk : tokens.slice(1, kSeen).split(token_by_token ? 1 : tokens.size(1), 1)) {
        parts.push_back(model->decode(chunk.contiguous(), states)[0]);
      }
      expect_near(at::cat(parts), hidden_TD.slice(0, kSeen));
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Models, StoredVersion,
                         ::testing::Values("multiscreen", "multiscreen_variant", "mixture", "swax"));

TEST_P(StoredVersion, GivesTheResultsThatItGave) {
  const at::NoGradGuard no_grad;
  expect_near(model->hidden(tokens, {})[0], expected.tensor("hidden"));
  if (!expected.contains("hidden-expanded")) return;
  expect_near(model->hidden(tokens, {.expand_windows = true})[0], expected.tensor("hidden-expanded"));
}

TEST_P(StoredVersion, DecodingStatesContinue) {
  expect_continues("state", {}, expected.tensor("hidden"));
  if (!expected.contains("hidden-expanded")) return;
  expect_continues("state-expanded", {.expand_windows = true}, expected.tensor("hidden-expanded"));
}

TEST_P(StoredVersion, IsCompleteAsThisVersionReadsIt) {
  EXPECT_EQ(complete_config(model->config()), model->config());
  EXPECT_EQ(complete_stored_config(model->config()), model->config());
  const auto again = std::filesystem::temp_directory_path() / ("tamis_stored_" + std::string(GetParam()));
  std::filesystem::create_directories(again);
  save_model(*model, again);
  const auto loaded = load_model(again);
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(loaded->hidden(tokens, {}).equal(model->hidden(tokens, {})));
  std::filesystem::remove_all(again);
}

TEST(StoredVersion, AMultiscreensConfigurationIsUnchanged) {
  const std::filesystem::path file = "tests/data/version-0.1/multiscreen/config.json";
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  EXPECT_EQ(load_model(file.parent_path())->config().dump(2) + "\n", text.str());
}

}  // namespace
}  // namespace tamis::models
