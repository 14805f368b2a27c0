#include "tamis/study/relevance.h"

#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace tamis::study {
namespace {

const std::vector<int64_t> kTokens = {1, 5, 3, 5, 2, 7, 1, 5};

/// The rows of each map: {query, key} and value.
std::map<std::string, std::map<std::pair<int64_t, int64_t>, double>> maps_of(const models::Model& model,
                                                                             int64_t heads) {
  std::map<std::string, std::map<std::pair<int64_t, int64_t>, double>> maps;
  add_relevance(model, kTokens, heads, /*expand_windows=*/false,
                [&](const std::string& metric, double value, const nlohmann::json& columns) {
                  EXPECT_EQ(metric, "relevance");
                  maps[columns["map"]][{columns["query"], columns["key"]}] = value;
                });
  return maps;
}

std::unique_ptr<models::Model> model_of(nlohmann::json config) {
  config.update({{"hidden_size", 8}, {"num_hidden_layers", 2}, {"num_attention_heads", 2}, {"vocab_size", 8}});
  return models::make_model(models::complete_config(config), /*seed=*/1);
}

TEST(AddRelevance, TakesTheHeadsThatLookFarthest) {
  const auto model = model_of({{"model_type", "transformer"}, {"pattern", "wa"}, {"window", 2}, {"position", "none"}});
  const c10::NoGradGuard no_gradients;
  for (const models::Parameter& parameter : model->parameters()) {
    if (parameter.tensor.dim() > 1) parameter.tensor.zero_();  // uniform attention
  }
  const auto maps = maps_of(*model, 2);
  ASSERT_EQ(maps.size(), 2u);
  EXPECT_TRUE(maps.contains("layer 1, head 0") && maps.contains("layer 1, head 1")) << maps.begin()->first;
  EXPECT_EQ(maps_of(*model, 9).size(), 4u);
  EXPECT_EQ(maps_of(*model, 9).begin()->first, "layer 0, head 0, w 2");
  const auto& map = maps.at("layer 1, head 0");
  EXPECT_EQ(map.size(), 8u * 9 / 2) << "only tokens that a query can see";
  EXPECT_NEAR(map.at({4, 2}), 0.25, 1e-6);
}

TEST(AddRelevance, NamesAcceptanceWidthsAndLeavesOutHeadsThatRejectEverything) {
  const auto model = model_of({{"model_type", "multiscreen"}, {"key_dim", 4}, {"value_dim", 4}});
  const auto all = maps_of(*model, 4);
  ASSERT_FALSE(all.empty());
  EXPECT_NE(all.begin()->first.find(", r 0.50"), std::string::npos) << all.begin()->first;
  const c10::NoGradGuard no_gradients;
  for (const models::Parameter& parameter : model->parameters()) {
    if (parameter.name.ends_with("s_r")) parameter.tensor.fill_(-20);
  }
  EXPECT_TRUE(maps_of(*model, 4).empty());
}

}  // namespace
}  // namespace tamis::study
