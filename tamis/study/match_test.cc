#include "tamis/study/match.h"

#include <gtest/gtest.h>

namespace tamis::study {
namespace {

using nlohmann::json;

json transformer_config(int64_t intermediate_size) {
  return models::complete_config({{"model_type", "transformer"},
                                  {"vocab_size", 64},
                                  {"hidden_size", 16},
                                  {"num_hidden_layers", 2},
                                  {"num_attention_heads", 2},
                                  {"intermediate_size", intermediate_size}});
}

json screening_config(int64_t key_dim, int64_t value_dim) {
  return models::complete_config({{"model_type", "multiscreen"},
                                  {"vocab_size", 64},
                                  {"hidden_size", 8},
                                  {"num_hidden_layers", 1},
                                  {"num_attention_heads", 1},
                                  {"key_dim", key_dim},
                                  {"value_dim", value_dim}});
}

int64_t size_of(const json& config) {
  return models::count_parameters(config).without_embedding;
}

TEST(SizeDifference, IsRelativeToTheSmallerSize) {
  EXPECT_DOUBLE_EQ(size_difference(100, 150), 0.5);
  EXPECT_DOUBLE_EQ(size_difference(150, 100), 0.5);
  EXPECT_DOUBLE_EQ(size_difference(7, 7), 0);
}

TEST(NearestFit, FindsTheIntermediateSizeExactly) {
  for (const int64_t wanted : {1, 2, 3, 17, 64, 1000}) {
    const SizeFit fit = nearest_fit(transformer_config(40), size_of(transformer_config(wanted)));
    EXPECT_EQ(fit.key, "intermediate_size");
    EXPECT_EQ(fit.value, wanted);
    EXPECT_EQ(fit.config, transformer_config(wanted));
    EXPECT_EQ(fit.parameters.without_embedding, size_of(transformer_config(wanted)));
  }
}

TEST(NearestFit, RoundsToTheCloserValue) {
  const int64_t low = size_of(transformer_config(20)), high = size_of(transformer_config(21));
  EXPECT_EQ(nearest_fit(transformer_config(40), low + (high - low) / 4).value, 20);
  EXPECT_EQ(nearest_fit(transformer_config(40), high - (high - low) / 4).value, 21);
}

TEST(NearestFit, TakesTheSmallestValueForATargetBelowAllSizes) {
  EXPECT_EQ(nearest_fit(transformer_config(40), 1).value, 1);
}

TEST(NearestFit, ChangesValueDimOfModelsWithoutMlp) {
  const SizeFit fit = nearest_fit(screening_config(4, 5), size_of(screening_config(4, 9)));
  EXPECT_EQ(fit.key, "value_dim");
  EXPECT_EQ(fit.value, 9);
  EXPECT_EQ(fit.parameters.without_embedding, size_of(screening_config(4, 9)));
}

TEST(NearestFit, ChangesAnotherKeyWhereValueDimIsTooCoarse) {
  const SizeFit fit = nearest_fit(screening_config(2, 1), size_of(screening_config(4, 1)));
  EXPECT_EQ(fit.key, "key_dim");
  EXPECT_EQ(fit.value, 4);
}

}  // namespace
}  // namespace tamis::study
