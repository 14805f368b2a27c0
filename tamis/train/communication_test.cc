#include "tamis/train/communication.h"

#include <gtest/gtest.h>

#include <string>

#include "tamis/models/model.h"

namespace tamis::train {
namespace {

/// 5 layers and one micro-batch for each of the rows of processes.
Recipe recipe_of(const std::string& pattern, int64_t context_parallel) {
  Recipe recipe;
  recipe.model = models::complete_config({{"model_type", "swax"},
                                          {"pattern", pattern},
                                          {"window", 4},
                                          {"vocab_size", 257},
                                          {"hidden_size", 32},
                                          {"num_hidden_layers", 5},
                                          {"num_attention_heads", 2},
                                          {"mlstm_heads", 2}});
  recipe.train.length = 64;
  recipe.train.batch_size = 2;
  recipe.train.accumulation = 2;
  recipe.train.precision = "float32";
  recipe.train.context_parallel = context_parallel;
  return recipe;
}

/// Messages that wait for one another, in a step: each takes a second, and bytes nothing.
double messages(const Recipe& recipe, int64_t processes) {
  const Network network{.processes = processes, .bandwidth = 1e300, .latency = 1};
  return plan_communication(recipe, nullptr, network)["seconds"].get<double>();
}

TEST(Communication, CountsMessagesOfGradientsAndGathers) {
  // The sums of one bucket; its parameters and four gathers of a few numbers, round a ring.
  EXPECT_EQ(messages(recipe_of("w", 1), 2), 1 + 5);
  Recipe recipe = recipe_of("w", 1);
  recipe.train.batch_size = recipe.train.accumulation = 4;
  EXPECT_EQ(messages(recipe, 4), 1 + 3 * 5);
  // Each of two micro-batches is sent by itself.
  recipe.train.reduction = "ordered";
  EXPECT_EQ(messages(recipe, 2), 2 + 5);
}

TEST(Communication, CountsMessagesOfLayersThatShareSequences) {
  const auto layers = [](const Recipe& recipe, int64_t processes) {
    Recipe plain = recipe;
    plain.train.context_parallel = 1;
    plain.train.batch_size = plain.train.accumulation = processes;  // so that it can be divided; as many messages
    return messages(recipe, processes) - messages(plain, processes);
  };
  Recipe window = recipe_of("w", 4), softmax = recipe_of("a", 4), mlstm = recipe_of("m", 4);
  for (Recipe* recipe : {&window, &softmax, &mlstm}) recipe->train.batch_size = recipe->train.accumulation = 1;
  EXPECT_EQ(layers(window, 4), 5 * 2);   // keys, and their gradients
  EXPECT_EQ(layers(softmax, 4), 5 * 9);  // three processes one after the other; again, and their gradients
  EXPECT_EQ(layers(mlstm, 4), 5 * 6);    // the state, and its gradient, through three others
  window.train.recompute = 0.4;          // the forward pass of two layers twice
  EXPECT_EQ(layers(window, 4), 3 * 2 + 2 * 3);
}

/// Heads whose windows end in the process before send apart from the others.
TEST(Communication, CountsTwoExchangesOfScreening) {
  Recipe recipe;
  recipe.model = models::complete_config({{"model_type", "multiscreen"},
                                          {"vocab_size", 257},
                                          {"hidden_size", 32},
                                          {"num_hidden_layers", 1},
                                          {"num_attention_heads", 4}});
  recipe.train.batch_size = recipe.train.accumulation = 1;
  recipe.train.precision = "float32";
  recipe.train.context_parallel = 2;
  recipe.train.length = 64;  // of windows up to 257 tokens
  EXPECT_EQ(messages(recipe, 2), 6 + 4);
  recipe.train.length = 1024;
  EXPECT_EQ(messages(recipe, 2), 6 + 2);
}

}  // namespace
}  // namespace tamis::train
