#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tamis/base/error.h"
#include "tamis/models/model.h"

namespace tamis::models {
namespace {

using nlohmann::json;

int64_t made_parameters(const json& config) {
  int64_t total = 0;
  for (const Parameter& parameter : make_model(config, 1)->parameters()) total += parameter.tensor.numel();
  return total;
}

std::string refusal(const json& config) {
  try {
    complete_config(config);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
  return "accepted";
}

struct Counted {
  int64_t psi, total, without_embedding;
};

TEST(ParameterCount, IsThatOfThePaper) {
  for (const Counted& paper :
       {Counted{8, 4'134'146, 917'698}, Counted{16, 27'546'626, 14'680'834}, Counted{32, 286'347'266, 234'884'098},
        Counted{48, 1'304'884'226, 1'189'092'098}, Counted{64, 3'963'961'346, 3'758'108'674}}) {
    const ParameterCount count = count_parameters(complete_config({{"psi", paper.psi}, {"vocab_size", 50'257}}));
    EXPECT_EQ(count.total, paper.total);
    EXPECT_EQ(count.without_embedding, paper.without_embedding);
  }
}

TEST(ParameterCount, OfTheModelWithoutGate) {
  const json config = {{"vocab_size", 50'257},
                       {"hidden_size", 256},
                       {"num_hidden_layers", 19},
                       {"num_attention_heads", 19},
                       {"gate", false}};
  EXPECT_EQ(count_parameters(complete_config(config)).total, 27'653'437);
}

TEST(ParameterCount, IsWhatAModelHolds) {
  for (const json& change :
       {json::object(), json{{"gate", false}}, json{{"fixed_r", 0.5}}, json{{"key_dim", 5}, {"value_dim", 7}}}) {
    json config = {{"psi", 4}, {"vocab_size", 300}};
    config.update(change);
    config = complete_config(config);
    EXPECT_EQ(made_parameters(config), count_parameters(config).total) << config;
  }
}

TEST(CompleteConfig, FillsInWhatPsiStandsFor) {
  const json config = complete_config({{"psi", 16}, {"vocab_size", 257}});
  EXPECT_EQ(config["model_type"], "multiscreen");
  EXPECT_EQ(config["hidden_size"], 256);
  EXPECT_EQ(config["num_attention_heads"], 16);
  EXPECT_EQ(config["num_hidden_layers"], 16);
  EXPECT_EQ(config["key_dim"], 16);
  EXPECT_EQ(config["value_dim"], 64);
  EXPECT_EQ(config["mipe_threshold"], 256.0);
  for (const char* key : {"fixed_r", "trim_power", "softmask"}) EXPECT_FALSE(config.contains(key)) << key;
  EXPECT_EQ(complete_config(config), config) << "a complete configuration stays as it is";
}

TEST(CompleteConfig, HasStrictAndAlgorithm1OnlyWhereTheyAreSet) {
  const auto of = [](const std::string& pattern, const json& change) {
    json config = {{"model_type", "transformer"}, {"vocab_size", 37},         {"hidden_size", 24},
                   {"num_hidden_layers", 3},      {"num_attention_heads", 4}, {"pattern", pattern}};
    config.update(change);
    return complete_config(config);
  };
  for (const char* key : {"strict", "sieve", "sieve_epsilon"}) {
    EXPECT_FALSE(of("av", json::object()).contains(key)) << "as in models of before: " << key;
    EXPECT_FALSE(of("sm", {{"strict", false}, {"sieve", "algorithm1"}, {"sieve_epsilon", 2.0}}).contains(key));
  }
  for (const bool strict : {false, true}) EXPECT_EQ(of("awebv", {{"strict", strict}})["strict"], strict);
  const json algorithm1 = of("v", {{"sieve", "algorithm1"}});
  EXPECT_EQ(algorithm1["sieve"], "algorithm1");
  EXPECT_EQ(algorithm1["sieve_epsilon"], 1e-6);
  EXPECT_FALSE(algorithm1.contains("alpha")) << "it selects without";
  EXPECT_EQ(complete_config(algorithm1), algorithm1);
  EXPECT_TRUE(of("ve", {{"sieve", "algorithm1"}}).contains("alpha")) << "of entmax";
  EXPECT_FALSE(of("v", {{"sieve", "equations"}, {"sieve_epsilon", 2.0}}).contains("sieve_epsilon"));
  EXPECT_THAT(refusal({{"psi", 4}, {"vocab_size", 300}, {"strict", true}}), ::testing::HasSubstr("but screening"));
}

TEST(CompleteConfig, NamesWhatIsWrong) {
  const auto with = [](const json& change) {
    json config = {{"psi", 4}, {"vocab_size", 300}};
    config.update(change);
    return refusal(config);
  };
  EXPECT_THAT(with({{"model_type", "multiscren"}}),
              ::testing::StartsWith("unknown model_type \"multiscren\"; did you mean "
                                    "\"multiscreen\"? Known: multiscreen"));
  EXPECT_THAT(with({{"hiden_size", 3}}), ::testing::HasSubstr("did you mean \"hidden_size\"?"));
  EXPECT_EQ(with({{"num_hidden_layers", 3}}),
            "model: \"psi\" sets hidden_size, num_hidden_layers and num_attention_heads, but \"num_hidden_layers\" is "
            "given too; leave out one of them");
  EXPECT_EQ(with({{"psi", nullptr}, {"hidden_size", "big"}}),
            "model: \"hidden_size\" must be a whole number from 1 to 1048576, but is \"big\"");
  EXPECT_THAT(with({{"key_dim", 1}}), ::testing::HasSubstr("\"key_dim\" must be a whole number from 2 to"));
  EXPECT_THAT(with({{"key_dim", 16.0}}), ::testing::HasSubstr("but is 16.0"));
  EXPECT_THAT(with({{"psi", nullptr}, {"hidden_size", 16}, {"num_hidden_layers", 18446744073709551615u}}),
              ::testing::HasSubstr("18446744073709551615"));
  EXPECT_THAT(with({{"position", "rotary"}}), ::testing::HasSubstr("unknown position \"rotary\""));
  EXPECT_THAT(with({{"logit_soft_cap", 0}}), ::testing::HasSubstr("\"logit_soft_cap\" must be a number above 0"));
  EXPECT_THAT(with({{"mipe_wrap_boundary", 9}, {"position", "none"}}),
              ::testing::HasSubstr("needs screening with the position \"mipe\", but it is \"none\""));
  EXPECT_THAT(with({{"trim_power", 4}}), ::testing::HasSubstr("\"trim_power\" must be"));
  EXPECT_THAT(with({{"softmask", "sine"}}), ::testing::HasSubstr("unknown softmask \"sine\""));
  EXPECT_THAT(with({{"fixed_r", 0}}), ::testing::HasSubstr("\"fixed_r\" must be a number above 0 and at most 1"));
  EXPECT_THAT(with({{"tanh_norm", 1}}), ::testing::HasSubstr("\"tanh_norm\" must be true or false, but is 1"));
  EXPECT_EQ(refusal({{"vocab_size", 300}}), "model: \"hidden_size\" is missing");
  EXPECT_EQ(refusal({{"psi", 4}}), "model: \"vocab_size\" is missing");
  EXPECT_EQ(refusal(json::array()), "model: expected a table of keys, but got []");
}

}  // namespace
}  // namespace tamis::models
