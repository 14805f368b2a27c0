#include "tamis/study/recall.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tamis/data/registry.h"
#include "tamis/data/task.h"

namespace tamis::study {
namespace {

constexpr int64_t kLength = 32;

eval::TaskEvalOptions options_of(const std::string& task) {
  eval::TaskEvalOptions options{.task = task, .lengths = {kLength}, .instances = 3, .expand_windows = false};
  options.settings = {{"vocab", 32}};
  if (task == "mqrar") options.settings.insert({{"keys", 3}, {"queries", 4}});
  if (task == "mqar") options.settings.insert({{"pairs", 4}});
  return options;
}

/// Softmax without positions and without queries: every query attends to all tokens up to its own alike.
std::unique_ptr<models::Model> uniform_model(const std::string& pattern = "a", int64_t mlstm_heads = 2) {
  auto model = models::make_model(models::complete_config({{"model_type", "transformer"},
                                                           {"hidden_size", 8},
                                                           {"num_hidden_layers", 2},
                                                           {"num_attention_heads", 2},
                                                           {"mlstm_heads", mlstm_heads},
                                                           {"vocab_size", 32},
                                                           {"pattern", pattern},
                                                           {"position", "none"}}),
                                  /*seed=*/1);
  const c10::NoGradGuard no_gradients;
  for (const models::Parameter& parameter : model->parameters()) {
    if (parameter.tensor.dim() > 1) parameter.tensor.zero_();
  }
  return model;
}

TEST(Recall, OfUniformAttentionIsTheShareOfTheTokens) {
  const eval::TaskEvalOptions options = options_of("mqrar");
  const Recall recall = recall_of(*uniform_model(), options, kLength);
  double newest = 0, stale = 0;
  for (int64_t index = 0; index < options.instances; ++index) {
    const auto instance = std::get<data::TokenInstance>(data::make_instance(
        data::find_task("mqrar"), {.length = kLength, .settings = options.settings}, static_cast<uint64_t>(index)));
    for (const int64_t query : instance.answer_positions) {
      const auto pairs = std::count(instance.ids.begin(), instance.ids.begin() + instance.answer_positions[0],
                                    instance.ids[static_cast<size_t>(query)]);
      const double share = 2.0 / static_cast<double>(query + 1) / static_cast<double>(4 * options.instances);
      newest += share;
      stale += share * static_cast<double>(pairs - 1);
    }
  }
  EXPECT_NEAR(recall.newest, newest, 1e-6);
  EXPECT_NEAR(recall.stale, stale, 1e-6);
  EXPECT_GT(recall.stale, 0);
  EXPECT_EQ(recall.map_QT.size(0), 4);
  EXPECT_TRUE(at::allclose(recall.map_QT.sum(-1), at::ones({4}, at::kDouble)));
}

TEST(Recall, OfKeysWithOneValueHasNothingStale) {
  const Recall recall = recall_of(*uniform_model(), options_of("mqar"), kLength);
  EXPECT_GT(recall.newest, 0);
  EXPECT_EQ(recall.stale, 0);
}

TEST(Recall, ReadsModelsWhoseLayersHaveOtherNumbersOfHeads) {
  // One head, whose weights of zero accept nothing, then two that attend to all tokens alike.
  const Recall recall = recall_of(*uniform_model("ma", /*mlstm_heads=*/1), options_of("mqrar"), kLength);
  EXPECT_EQ(recall.layer, 1);
  EXPECT_EQ(recall.head, 0);
  EXPECT_EQ(recall.newest, recall_of(*uniform_model(), options_of("mqrar"), kLength).newest);
  ASSERT_EQ(recall.map_QT.sizes(), (std::vector<int64_t>{4, kLength - 1}));
  EXPECT_TRUE(at::allclose(recall.map_QT.sum(-1), at::ones({4}, at::kDouble)));
}

}  // namespace
}  // namespace tamis::study
