// What the keys of other programs' config.json and generation_config.json say.

#include "tamis/models/exchange/external_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/models/exchange/testing.h"

namespace tamis::models::exchange {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::small_llama;

/// A model of another program, whose config.json the tests change.
class ForeignConfig : public testing::ConversionTest {
 protected:
  void give(const json& own_config, const std::string& format) {
    fs::remove_all(root_ / "there");
    convert(save(own_config), root_ / "there", {.to = format});
    tensors_ = read(root_ / "there");
    config_ = config_of(root_ / "there");
  }

  std::string with(const json& change, const ConvertOptions& options = {}) const {
    json config = config_;
    config.update(change);
    return refusal(write(config, tensors_), options);
  }

  json config_;
  Tensors tensors_;
};

/// Of the sizes that NX-AI's rounding leaves as they are, with its soft cap.
json small_xlstm() {
  return complete_config({{"model_type", "swax"},
                          {"pattern", "m"},
                          {"vocab_size", 37},
                          {"hidden_size", 128},
                          {"num_hidden_layers", 2},
                          {"num_attention_heads", 2},
                          {"intermediate_size", 384},
                          {"norm_eps", 1e-6},
                          {"logit_soft_cap", 30},
                          {"tie_word_embeddings", false},
                          {"final_norm_weight", true}});
}

/// All keys of xLSTM-7B's config.json.
json published_xlstm() {
  return {{"add_embedding_dropout", false},
          {"add_forward_backend_padding", false},
          {"add_out_norm", true},
          {"add_post_blocks_norm", true},
          {"add_post_norm", false},
          {"add_qk_norm", false},
          {"architectures", {"xLSTMForCausalLM"}},
          {"autocast_kernel_dtype", "bfloat16"},
          {"bos_token_id", 0},
          {"cell_norm_eps", 1e-6},
          {"chunk_size", 64},
          {"chunkwise_kernel", "chunkwise--triton_xl_chunk"},
          {"embedding_dim", 128},
          {"eos_token_id", 2},
          {"eps", 1e-6},
          {"ffn_proj_factor", 2.667},
          {"ffn_round_up_to_multiple_of", 64},
          {"force_bos_token_insert", true},
          {"gate_soft_cap", 15.0},
          {"head_dim", 64},
          {"igate_bias_init_range", -10.0},
          {"inference_state_dtype", "float32"},
          {"mlstm_round_up_to_multiple_of", 64},
          {"mode", "inference"},
          {"model_type", "xlstm"},
          {"norm_eps", 1e-6},
          {"norm_reduction_force_float32", true},
          {"num_blocks", 2},
          {"num_heads", 2},
          {"output_logit_soft_cap", 30.0},
          {"pad_token_id", 1},
          {"qk_dim_factor", 0.5},
          {"return_last_states", true},
          {"sequence_kernel", "native_sequence__triton"},
          {"step_kernel", "triton"},
          {"tie_word_embeddings", false},
          {"torch_dtype", "float32"},
          {"transformers_version", "4.48.0.dev0"},
          {"use_bias", false},
          {"use_cache", true},
          {"v_dim_factor", 1.0},
          {"vocab_size", 37},
          {"weight_mode", "single"}};
}

TEST_F(ForeignConfig, OfXlstm7BIsRead) {
  give(small_xlstm(), "xlstm");
  config_ = published_xlstm();
  ASSERT_EQ(with(json::object()), "accepted");
  EXPECT_EQ(load_model(root_ / "target")->config(), load_model(root_ / "own")->config());
  const Tensors before = read(root_ / "own"), after = read(root_ / "target");
  for (const auto& [name, tensor] : before) EXPECT_TRUE(tensor.equal(after.at(name))) << name;

  EXPECT_THAT(with({{"add_qk_norm", true}}), HasSubstr("\"add_qk_norm\" must be false, but is true"));
  EXPECT_THAT(with({{"add_post_norm", true}}), HasSubstr("\"add_post_norm\" must be false, but is true"));
  EXPECT_THAT(with({{"add_post_blocks_norm", false}}), HasSubstr("\"add_post_blocks_norm\" must be true"));
  EXPECT_THAT(with({{"cell_norm_eps", 1e-5}}), HasSubstr("\"cell_norm_eps\" must be 1e-06, but is 1e-05"));
  EXPECT_THAT(with({{"head_dim", 32}}), HasSubstr("\"head_dim\" must be 64, but is 32"));
  EXPECT_THAT(with({{"num_heads", 3}}), HasSubstr("\"num_heads\" must divide the width 128, but is 3"));
}

TEST_F(ForeignConfig, OfSmolLM2IsRead) {
  give(small_llama(), "llama");
  const json keys = {{"is_llama_config", true},
                     {"rope_interleaved", false},
                     {"max_sequence_length", 32},
                     {"transformers.js_config", {{"kv_cache_dtype", {{"q4f16", "float16"}, {"fp16", "float16"}}}}}};
  EXPECT_EQ(with(keys), "accepted");
}

TEST_F(ForeignConfig, InterleavedRowsNeedAWord) {
  give(small_llama(), "llama");
  const json interleaved = {{"rope_interleaved", true}};
  EXPECT_THAT(with(interleaved), AllOf(HasSubstr("\"rope_interleaved\" is true"), HasSubstr("--rotary-layout")));
  EXPECT_EQ(with(interleaved, {.format = {.rotary_layout = "half"}}), "accepted");
  EXPECT_EQ(with(interleaved, {.format = {.rotary_layout = "interleaved"}}), "accepted");
}

TEST_F(ForeignConfig, AnUnknownKeyListsThoseOfTheFormatOnce) {
  give(small_llama(), "llama");
  const std::string message = with({{"rope_tetha", 500.0}});
  EXPECT_THAT(message, HasSubstr("unknown key \"rope_tetha\"; did you mean \"rope_theta\"? Known: "));
  const std::string known = message.substr(message.find("Known: "));
  EXPECT_THAT(known, AllOf(HasSubstr("num_key_value_heads"), HasSubstr("eos_token_id"), Not(HasSubstr("top_p")),
                           Not(HasSubstr("transformers_version"))));
  EXPECT_EQ(known.find("rope_theta"), known.rfind("rope_theta"));
  EXPECT_LT(known.size(), 700);
}

TEST_F(ForeignConfig, RotationsAreThoseOfTransformers) {
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 16}};
  const json plain = {{"rope_type", "default"}, {"rope_theta", 10'000.0}};
  give(small_llama(), "llama");
  config_.erase("rope_theta");
  EXPECT_THAT(with({{"rope_scaling", llama3}, {"rope_parameters", plain}}),
              HasSubstr("\"rope_parameters\" and \"rope_scaling\" describe different rotations"));
  json based = llama3;
  based["rope_theta"] = 500.0;  // transformers would take the base 10000
  EXPECT_THAT(with({{"rope_scaling", llama3}, {"rope_parameters", based}}), HasSubstr("different rotations"));
  EXPECT_EQ(with({{"rope_scaling", llama3}, {"rope_parameters", based}, {"rope_theta", 500.0}}), "accepted");
  EXPECT_EQ(config_of(root_ / "target")["rope_theta"], 500.0);
  EXPECT_EQ(with({{"rope_scaling", json::object()}, {"rope_parameters", based}}), "accepted");
  EXPECT_EQ(config_of(root_ / "target")["rope_factor"], 8.0);
  EXPECT_EQ(with({{"rope_scaling", json()}, {"rope_parameters", based}, {"rope_theta", 700.0}}), "accepted");
  EXPECT_EQ(config_of(root_ / "target")["rope_theta"], 500.0);
}

TEST_F(ForeignConfig, ErrorsOfRotationsNameTheFileAndTheKey) {
  give(small_llama(), "llama");
  const json linear = {{"rope_type", "linear"}};
  EXPECT_THAT(with({{"rope_parameters", linear}}), HasSubstr("config.json: rope_parameters: \"factor\" is missing"));
  EXPECT_THAT(with({{"rope_scaling", linear}}), HasSubstr("config.json: rope_scaling: \"factor\" is missing"));
  EXPECT_THAT(with({{"rope_scaling", {{"rope_type", "yarn"}}}}),
              HasSubstr("config.json: rope_scaling: has the type \"yarn\""));
  EXPECT_THAT(with({{"rope_scaling", {{"rope_type", "default"}, {"temperature", 2.0}}}}),
              HasSubstr("config.json: rope_scaling: unknown key \"temperature\""));
  EXPECT_THAT(with({{"rope_parameters", 2}}),
              HasSubstr("config.json: \"rope_parameters\" must be an object, but is 2"));
  EXPECT_THAT(with({{"partial_rotary_factor", 0.5}}), HasSubstr("\"partial_rotary_factor\" must be 1.0, but is 0.5"));
}

TEST_F(ForeignConfig, HeadsDivideTheWidth) {
  give(small_llama(), "llama");
  EXPECT_THAT(with({{"num_attention_heads", 5}}),
              HasSubstr("config.json: \"num_attention_heads\" must divide the width 24, but is 5"));
}

TEST_F(ForeignConfig, TokensAndDtypesThatNoCheckpointHasAreRefused) {
  give(small_llama(), "llama");
  const std::string expected = "must be a token id below \"vocab_size\" 37, or a list of them, but is ";
  EXPECT_THAT(with({{"eos_token_id", 999}}), HasSubstr("config.json: model: \"eos_token_id\" " + expected + "999"));
  EXPECT_THAT(with({{"eos_token_id", "</s>"}}), HasSubstr("\"eos_token_id\" " + expected + "\"</s>\""));
  EXPECT_THAT(with({{"eos_token_id", 2.5}}), HasSubstr("\"eos_token_id\" " + expected + "2.5"));
  EXPECT_THAT(with({{"pad_token_id", 37}}), HasSubstr("\"pad_token_id\" " + expected + "37"));
  EXPECT_THAT(with({{"dtype", "int8"}}), HasSubstr("\"dtype\" must be \"float32\", \"float16\" or \"bfloat16\""));
  EXPECT_EQ(with({{"eos_token_id", {3, 36}}, {"pad_token_id", -1}, {"bos_token_id", json()}}), "accepted");

  const fs::path other = write(config_, tensors_);
  write_file_atomic(other / "generation_config.json", R"({"pad_token_id": 37, "eos_token_id": [2]})");
  EXPECT_THAT(refusal(other), HasSubstr("generation_config.json: model: \"pad_token_id\" " + expected + "37"));
}

TEST_F(ForeignConfig, HasNoTokensWhereTheModelHasNone) {
  give(small_llama(), "llama");  // transformers would take 1 and 2 for keys that are missing
  for (const char* key : {"bos_token_id", "eos_token_id"}) {
    EXPECT_TRUE(config_.contains(key) && config_[key].is_null()) << key;
  }
  give(small_xlstm(), "xlstm");
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    EXPECT_TRUE(config_.contains(key) && config_[key].is_null()) << key;
  }
  EXPECT_EQ(with({{"eos_token_id", 5}}), "accepted");
  EXPECT_EQ(config_of(root_ / "target")["eos_token_id"], 5);
  EXPECT_FALSE(config_of(root_ / "target").contains("bos_token_id"));
}

TEST_F(ForeignConfig, ATiedHeadMayBeStoredToo) {
  const json tied = {{"tie_word_embeddings", true}};
  for (const auto& [format, embedding] :
       {std::pair("llama", "model.embed_tokens.weight"), std::pair("xlstm", "backbone.embeddings.weight")}) {
    give(format == std::string("llama") ? small_llama() : small_xlstm(), format);
    EXPECT_THAT(with(tied), HasSubstr(std::string("lm_head.weight differs from ") + embedding)) << format;
    tensors_["lm_head.weight"] = tensors_.at(embedding).clone();
    EXPECT_EQ(with(tied), "accepted") << format;
    EXPECT_FALSE(read(root_ / "target").contains("head.weight")) << format;
  }
}

}  // namespace
}  // namespace tamis::models::exchange
