#include "tamis/models/exchange/convert.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/models/checkpoint.h"
#include "tamis/models/exchange/testing.h"

namespace tamis::models::exchange {
namespace {

namespace fs = std::filesystem;
using at::Tensor;
using nlohmann::json;
using ::testing::HasSubstr;
using testing::small_config;
using testing::small_llama;
using testing::small_model;

class Exchange : public testing::ConversionTest {
 protected:
  static Tensor logits(const fs::path& directory) {
    const at::NoGradGuard no_grad;
    const auto model = load_model(directory);
    return at::linear(model->hidden(testing::random_tokens(2, 24, 37, 1), {}), model->head_weight());
  }

  /// Converts to another format and back; every tensor and the configuration must be as before.
  void expect_round_trip(const fs::path& own, const std::string& format, const FormatOptions& options = {}) const {
    fs::remove_all(root_ / "there");
    fs::remove_all(root_ / "back");
    convert(own, root_ / "there", {.to = format, .format = {.rotary_layout = options.rotary_layout}});
    const Converted converted = convert(root_ / "there", root_ / "back", {.format = options});
    EXPECT_EQ(converted.from, format);
    EXPECT_EQ(load_model(root_ / "back")->config(), load_model(own)->config());
    const Tensors before = read(own), after = read(root_ / "back");
    ASSERT_EQ(before.size(), after.size());
    for (const auto& [name, tensor] : before) EXPECT_TRUE(tensor.equal(after.at(name))) << name;
  }
};

TEST_F(Exchange, MultiscreensGoAndComeBack) {
  for (const char* format : {"multiscreen-pytorch", "multiscreen-hf"}) {
    expect_round_trip(save(small_config()), format);
  }
}

TEST_F(Exchange, MultiscreenPytorchHasItsNamesAndTheOppositeSign) {
  const fs::path own = save(small_config());
  convert(own, root_ / "there", {.to = "multiscreen-pytorch"});
  const Tensors before = read(own), there = read(root_ / "there");
  EXPECT_TRUE(there.at("layers.2.block.sr").equal(-before.at("layers.2.s_r")));
  EXPECT_TRUE(there.at("layers.1.block.sw").equal(before.at("layers.1.s_w")));
  EXPECT_TRUE(there.at("layers.0.block.sO").equal(before.at("layers.0.s_O")));
  EXPECT_TRUE(there.at("layers.0.block.g_proj.weight").equal(before.at("layers.0.g_proj.weight")));
  EXPECT_TRUE(there.at("s_E").equal(before.at("s_E")));
  const json expected = {
      {"vocab_size", 37}, {"hidden_dim", 24},  {"num_layers", 3},         {"num_heads", 4},          {"key_dim", 6},
      {"value_dim", 10},  {"max_seq_len", 32}, {"mipe_threshold", 256.0}, {"torch_dtype", "float32"}};
  EXPECT_EQ(config_of(root_ / "there"), expected);
  convert(own, root_ / "port", {.to = "multiscreen-hf"});
  EXPECT_TRUE(read(root_ / "port").contains("multiscreen.layers.0.block.sr"));
  EXPECT_EQ(config_of(root_ / "port")["mipe_position_mode"], "paper_absolute");
}

TEST_F(Exchange, PositionsOfAMultiscreenWrapOnRequest) {
  const fs::path own = save(small_config());
  convert(own, root_ / "pytorch", {.to = "multiscreen-pytorch"});
  convert(root_ / "pytorch", root_ / "wrapped", {.format = {.wrap_positions = true}});
  EXPECT_EQ(config_of(root_ / "wrapped")["mipe_wrap_boundary"], 32);
  expect_round_trip(root_ / "wrapped", "multiscreen-hf", {.wrap_positions = true});
  expect_round_trip(root_ / "wrapped", "multiscreen-pytorch", {.wrap_positions = true});

  convert(own, root_ / "port", {.to = "multiscreen-hf"});
  const ConvertOptions wrap{.format = {.wrap_positions = true}};
  EXPECT_THAT(refusal(root_ / "port", wrap),
              HasSubstr("\"mipe_position_mode\" is \"paper_absolute\": no position wraps"));
  EXPECT_THAT(refusal(own, wrap, ExitCode::kUsage),
              HasSubstr("models of the format tamis have no positions that wrap"));
  EXPECT_THAT(refusal(save(small_config({{"mipe_wrap_boundary", 20}}), "early"), {.to = "multiscreen-pytorch"}),
              HasSubstr("its positions wrap at 20, not at 32"));
}

TEST_F(Exchange, TransformersGoToLlamaAndBack) {
  expect_round_trip(save(small_llama()), "llama");
  expect_round_trip(save(small_llama({{"tie_word_embeddings", true}, {"rope_factor", 4}}), "tied"), "llama");
  expect_round_trip(
      save(small_llama({{"rope_scaling", "llama3"}, {"rope_factor", 8}, {"rope_original_length", 16}}), "stretched"),
      "llama");
  expect_round_trip(save(small_llama(), "interleaved"), "llama", {.rotary_layout = "interleaved"});
}

TEST_F(Exchange, InterleavedRowsArePermutedAsByTransformers) {
  // permute() of its convert_llama_weights_to_hf.py, which brings Meta's rows into the order of transformers.
  const auto permuted = [](const Tensor& rows) { return rows.view({4, 3, 2, 24}).transpose(1, 2).reshape({24, 24}); };
  const std::string name = "model.layers.1.self_attn.";
  const ConvertOptions from_meta{.format = {.rotary_layout = "interleaved"}};
  const fs::path own = save(small_llama());
  convert(own, root_ / "half", {.to = "llama"});
  const Tensors meta = read(root_ / "half");
  convert(root_ / "half", root_ / "read", from_meta);  // takes the rows for Meta's
  const std::vector<Tensor> qkv = read(root_ / "read").at("layers.1.qkv_proj.weight").split(24);
  EXPECT_TRUE(qkv[0].equal(permuted(meta.at(name + "q_proj.weight"))));
  EXPECT_TRUE(qkv[1].equal(permuted(meta.at(name + "k_proj.weight"))));
  EXPECT_TRUE(qkv[2].equal(meta.at(name + "v_proj.weight")));
  EXPECT_TRUE(qkv[0][1].equal(meta.at(name + "q_proj.weight")[2]));  // of a head six wide: 1 and 4 were 2 and 3
  EXPECT_TRUE(qkv[0][4].equal(meta.at(name + "q_proj.weight")[3]));

  convert(own, root_ / "meta", {.to = "llama", .format = {.rotary_layout = "interleaved"}});
  const Tensors written = read(root_ / "meta");
  EXPECT_TRUE(permuted(written.at(name + "q_proj.weight")).equal(meta.at(name + "q_proj.weight")));
  EXPECT_TRUE(permuted(written.at(name + "k_proj.weight")).equal(meta.at(name + "k_proj.weight")));
  EXPECT_TRUE(written.at(name + "v_proj.weight").equal(meta.at(name + "v_proj.weight")));
}

TEST_F(Exchange, RefusesARotaryLayoutThatSaysNothing) {
  const fs::path own = save(small_config());
  EXPECT_THAT(refusal(own, {.format = {.rotary_layout = "interleavd"}}, ExitCode::kUsage),
              HasSubstr("unknown rotary layout \"interleavd\"; did you mean \"interleaved\"?"));
  EXPECT_THAT(refusal(own, {.to = "multiscreen-hf", .format = {.rotary_layout = "half"}}, ExitCode::kUsage),
              HasSubstr("models of the formats tamis and multiscreen-hf have no other layout"));
  convert(save(small_llama(), "llama"), root_ / "there", {.to = "llama"});
  EXPECT_THAT(refusal(root_ / "there", {.to = "llama", .format = {.rotary_layout = "interleaved"}}, ExitCode::kUsage),
              HasSubstr("from llama to llama it could be that of either; convert to tamis in between"));
}

TEST_F(Exchange, AFinalNormWithoutWeightsBecomesOnes) {
  const fs::path own = save(small_model());
  convert(own, root_ / "there", {.to = "llama"});
  EXPECT_TRUE(read(root_ / "there").at("model.norm.weight").equal(at::ones({24})));
  convert(root_ / "there", root_ / "back", {});
  EXPECT_TRUE(logits(root_ / "back").allclose(logits(own), 0, 1e-6));
}

TEST_F(Exchange, GroupedKeysAreRepeatedForTheirHeads) {
  convert(save(small_llama()), root_ / "there", {.to = "llama"});
  Tensors tensors = read(root_ / "there");
  json config = config_of(root_ / "there");
  config["num_key_value_heads"] = 2;
  for (int l = 0; l < 3; ++l) {
    for (const char* name : {"k_proj", "v_proj"}) {
      Tensor& rows = tensors.at("model.layers." + std::to_string(l) + ".self_attn." + name + ".weight");
      rows = rows.narrow(0, 0, 12).contiguous();  // two heads of six rows
    }
  }
  convert(write(config, tensors), root_ / "grouped", {});
  const Tensor keys = read(root_ / "grouped").at("layers.0.qkv_proj.weight").narrow(0, 24, 24).view({4, 6, 24});
  const Tensor stored = tensors.at("model.layers.0.self_attn.k_proj.weight").view({2, 6, 24});
  for (int64_t head = 0; head < 4; ++head) EXPECT_TRUE(keys[head].equal(stored[head / 2])) << head;
}

TEST_F(Exchange, LargeModelsAreWrittenAsShards) {
  const fs::path own = save(small_llama());
  convert(own, root_ / "target", {.shard_bytes = 20'000});
  EXPECT_FALSE(fs::exists(root_ / "target" / "model.safetensors"));
  const json map = json::parse(read_file(root_ / "target" / "model.safetensors.index.json"))["weight_map"];
  EXPECT_THAT(map["embed.weight"].get<std::string>(), HasSubstr("model-00001-of-0000"));
  EXPECT_NE(map["embed.weight"], map["norm.weight"]);
  const Tensors before = read(own), after = read(root_ / "target");
  for (const auto& [name, tensor] : before) EXPECT_TRUE(tensor.equal(after.at(name))) << name;
  EXPECT_TRUE(logits(root_ / "target").equal(logits(own)));
  EXPECT_EQ(resolve_checkpoint(root_ / "target"), root_ / "target");
}

TEST_F(Exchange, HalfPrecisionStaysHalfPrecision) {
  convert(save(small_llama()), root_ / "there", {.to = "llama"});
  Tensors tensors = read(root_ / "there");
  for (auto& [name, tensor] : tensors) tensor = tensor.to(at::kBFloat16);
  convert(write(config_of(root_ / "there"), tensors), root_ / "target", {});
  for (const auto& [name, tensor] : read(root_ / "target")) EXPECT_EQ(tensor.scalar_type(), at::kBFloat16) << name;
  EXPECT_EQ(config_of(root_ / "target")["torch_dtype"], "bfloat16");
}

TEST_F(Exchange, CopiesTheTokenizerAndItsTokens) {
  const fs::path own = save(small_config());
  EXPECT_THAT(convert(own, root_ / "without", {.to = "multiscreen-hf"}).notes.at(0),
              HasSubstr("has no tokenizer.json"));
  write_file_atomic(own / "tokenizer.json", "{}");
  write_file_atomic(own / "generation_config.json", R"({"eos_token_id": 7})");
  const Converted converted = convert(own, root_ / "with", {.to = "multiscreen-hf"});
  EXPECT_TRUE(converted.notes.empty());
  EXPECT_EQ(read_file(root_ / "with" / "tokenizer.json"), "{}");
  EXPECT_EQ(config_of(root_ / "with")["eos_token_id"], 7);
}

TEST_F(Exchange, SaysWhichTensorIsWrong) {
  convert(save(small_llama()), root_ / "there", {.to = "llama"});
  const json config = config_of(root_ / "there");
  const Tensors tensors = read(root_ / "there");
  const auto with = [&](const auto& change) {
    Tensors changed = tensors;
    change(changed);
    return refusal(write(config, changed));
  };
  EXPECT_THAT(with([](Tensors& t) { t.erase("model.layers.1.mlp.up_proj.weight"); }),
              HasSubstr("has no tensor \"model.layers.1.mlp.up_proj.weight\", which its configuration requires"));
  EXPECT_THAT(
      with([](Tensors& t) { t["model.layers.3.mlp.up_proj.weight"] = at::zeros({1}); }),
      HasSubstr("holds \"model.layers.3.mlp.up_proj.weight\", which the model in its configuration does not have"));
  EXPECT_THAT(with([](Tensors& t) { t["model.norm.weight"] = at::zeros({23}); }),
              HasSubstr("\"model.norm.weight\" must be [24] by its configuration, but is [23]"));
  EXPECT_THAT(with([](Tensors& t) { t["model.norm.weight"] = at::zeros({24}, at::kLong); }),
              HasSubstr("must be F32, F16 or BF16, but is Long"));
  EXPECT_THAT(
      with([](Tensors& t) { t["model.norm.weight"] = at::full({24}, std::numeric_limits<float>::quiet_NaN()); }),
      HasSubstr("model.norm.weight\" holds numbers that are not finite"));
  EXPECT_THAT(with([](Tensors& t) { t["model.layers.0.self_attn.q_proj.bias"] = at::zeros({24}); }),
              HasSubstr("the model has biases"));
  EXPECT_EQ(with([](Tensors& t) { t["model.layers.0.self_attn.rotary_emb.inv_freq"] = at::zeros({3}); }), "accepted");
}

TEST_F(Exchange, RefusesWhatALlamaComputesOtherwise) {
  convert(save(small_llama()), root_ / "there", {.to = "llama"});
  const Tensors tensors = read(root_ / "there");
  const auto with = [&](const json& change) {
    json config = config_of(root_ / "there");
    config.update(change);
    return refusal(write(config, tensors));
  };
  EXPECT_THAT(with({{"attention_bias", true}}), HasSubstr("\"attention_bias\" must be false, but is true"));
  EXPECT_THAT(with({{"hidden_act", "gelu"}}), HasSubstr("\"hidden_act\" must be \"silu\""));
  EXPECT_THAT(with({{"head_dim", 8}}), HasSubstr("\"head_dim\" must be 6, but is 8"));
  EXPECT_THAT(with({{"num_key_value_heads", 3}}), HasSubstr("must divide \"num_attention_heads\" 4, but is 3"));
  EXPECT_THAT(with({{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}}}), HasSubstr("has the type \"yarn\""));
  EXPECT_THAT(with({{"sliding_window", 128}}), HasSubstr("full attention only"));
  EXPECT_THAT(with({{"hidden_sise", 24}}), HasSubstr("unknown key \"hidden_sise\"; did you mean \"hidden_size\"?"));
  EXPECT_THAT(with({{"tie_word_embeddings", true}}), HasSubstr("lm_head.weight differs"));
  EXPECT_THAT(with({{"model_type", "mamba"}}), HasSubstr("are of no known format; known: "));
  EXPECT_EQ(with({{"pretraining_tp", 1}, {"attention_dropout", 0.1}, {"transformers_version", "5.0"}}), "accepted");
}

TEST_F(Exchange, RefusesModelsThatTheTargetCannotHold) {
  EXPECT_THAT(refusal(save(small_config(), "screens"), {.to = "llama"}),
              HasSubstr("this model cannot be written as LLaMA"));
  EXPECT_THAT(refusal(save(small_model({{"ssmax", "learned"}}), "scaled"), {.to = "llama"}),
              HasSubstr("Scalable-Softmax"));
  EXPECT_THAT(refusal(save(small_model(), "stack"), {.to = "multiscreen-hf"}), HasSubstr("its pattern is \"a\""));
  EXPECT_THAT(refusal(save(small_config({{"gate", false}}), "open"), {.to = "multiscreen-pytorch"}),
              HasSubstr("the gate"));
  EXPECT_THAT(refusal(save(small_config({{"trim_power", 1}}), "shape"), {.to = "multiscreen-hf"}),
              HasSubstr("its Trim or Softmask has another shape"));
  const fs::path capped = save(small_llama({{"logit_soft_cap", 30}}), "capped");
  EXPECT_THAT(refusal(capped, {.to = "llama"}), HasSubstr("its logits have a soft cap"));
  const fs::path strict = save(small_llama({{"strict", true}}), "strict");
  EXPECT_THAT(refusal(strict, {.to = "llama"}), HasSubstr("its tokens do not see themselves (strict = true)"));
}

TEST_F(Exchange, RefusesBadNamesAndTargets) {
  const fs::path own = save(small_config());
  EXPECT_THAT(refusal(own, {.to = "lama"}, ExitCode::kUsage),
              HasSubstr("unknown format \"lama\"; did you mean \"llama\""));
  EXPECT_THAT(refusal(root_ / "nowhere"), HasSubstr("expected the directory of a model"));
  EXPECT_THAT(refusal(root_), HasSubstr("expected config.json and model.safetensors"));
  make_directories(root_ / "full");
  try {
    convert(own, root_ / "full", {.to = "multiscreen-hf"});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("exists; name a directory that does not"));
  }
}

TEST_F(Exchange, SaysWhatIsWrongWithShards) {
  const fs::path own = save(small_llama());
  convert(own, root_ / "shards", {.shard_bytes = 20'000});
  const fs::path index = root_ / "shards" / "model.safetensors.index.json";
  const json whole = json::parse(read_file(index));
  const auto with = [&](const auto& change) {
    json changed = whole;
    change(changed);
    write_file_atomic(index, changed.dump());
    return refusal(root_ / "shards", {.to = "llama"});
  };
  EXPECT_THAT(with([](json& i) { i.erase("weight_map"); }), HasSubstr("expected an object with \"weight_map\""));
  EXPECT_THAT(with([](json& i) { i["weight_map"]["embed.weight"] = "../own/model.safetensors"; }),
              HasSubstr("must be a name like model-00001-of-00002.safetensors"));
  EXPECT_THAT(with([](json& i) { i["weight_map"].erase("norm.weight"); }),
              HasSubstr("holds \"norm.weight\", which the index does not expect there"));
  EXPECT_THAT(with([](json& i) { i["weight_map"]["more"] = i["weight_map"]["norm.weight"]; }),
              HasSubstr("has no tensor \"more\", which the index expects there"));
  EXPECT_EQ(with([](json&) {}), "accepted");
  const auto last = whole["weight_map"]["norm.weight"].get<std::string>();
  fs::resize_file(root_ / "shards" / last, fs::file_size(root_ / "shards" / last) - 1);
  EXPECT_THAT(refusal(root_ / "shards", {.to = "llama"}), HasSubstr(last));
}

}  // namespace
}  // namespace tamis::models::exchange
