#include "tamis/models/checkpoint.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/models/testing.h"

namespace tamis::models {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using testing::small_config;

class Checkpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("tamis-checkpoint-" + std::to_string(getpid()));
    fs::remove_all(root_);
    make_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  fs::path save(const Model& model, const std::string& name = "model") const {
    write_directory_atomic(root_ / name, [&](const fs::path& directory) { save_model(model, directory); });
    return root_ / name;
  }

  /// The tensors of a saved model, changed and written back.
  template <typename Change>
  void rewrite(const fs::path& directory, const Change& change) const {
    const nn::SafetensorsFile file(directory / "model.safetensors");
    std::vector<nn::NamedTensor> tensors;
    for (const std::string& name : file.names()) tensors.push_back({name, file.tensor(name)});
    change(tensors);
    nn::write_safetensors(directory / "changed", tensors);
    fs::rename(directory / "changed", directory / "model.safetensors");
  }

  template <typename Action>
  static std::string refusal(const Action& action) {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kInput);
      return error.what();
    }
    return "accepted";
  }
  static std::string load_refusal(const fs::path& directory) {
    return refusal([&] { load_model(directory); });
  }

  fs::path root_;
};

at::Tensor& find(std::vector<nn::NamedTensor>& tensors, const std::string& name) {
  return std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; })->tensor;
}

TEST_F(Checkpoint, ComesBackWithEveryBit) {
  for (const json& change :
       {json::object(), json{{"gate", false}}, json{{"fixed_r", 0.25}}, json{{"position", "none"}}}) {
    const auto model = make_model(small_config(change), 3);
    testing::disturb(*model);
    const auto loaded = load_model(save(*model));
    EXPECT_EQ(loaded->config(), model->config());
    const auto expected = model->parameters(), found = loaded->parameters();
    ASSERT_EQ(found.size(), expected.size());
    for (size_t p = 0; p < expected.size(); ++p) {
      EXPECT_EQ(found[p].name, expected[p].name);
      EXPECT_TRUE(found[p].tensor.equal(expected[p].tensor)) << expected[p].name;
      EXPECT_TRUE(found[p].tensor.requires_grad() && found[p].tensor.is_leaf());
    }
    const at::NoGradGuard no_grad;
    const at::Tensor tokens = testing::random_tokens(1, 20, 37, 1);
    EXPECT_TRUE(loaded->hidden(tokens, {}).equal(model->hidden(tokens, {})));
  }
}

TEST_F(Checkpoint, HasTheNamesOfItsDocument) {
  const auto directory = save(*make_model(small_config({{"num_hidden_layers", 1}}), 3));
  const nn::SafetensorsFile file(directory / "model.safetensors");
  const std::vector<std::pair<std::string, std::vector<int64_t>>> expected = {{"embed.weight", {37, 24}},
                                                                              {"s_E", {}},
                                                                              {"s_F", {}},
                                                                              {"layers.0.q_proj.weight", {24, 24}},
                                                                              {"layers.0.k_proj.weight", {24, 24}},
                                                                              {"layers.0.v_proj.weight", {40, 24}},
                                                                              {"layers.0.g_proj.weight", {40, 24}},
                                                                              {"layers.0.o_proj.weight", {24, 40}},
                                                                              {"layers.0.s_w", {4}},
                                                                              {"layers.0.s_r", {4}},
                                                                              {"layers.0.s_O", {4}}};
  EXPECT_EQ(file.names().size(), expected.size());
  for (const auto& [name, shape] : expected) EXPECT_EQ(file.shape(name), at::IntArrayRef(shape)) << name;
  const json config = json::parse(read_file(directory / "config.json"));
  EXPECT_EQ(config["model_type"], "multiscreen");
  EXPECT_EQ(config["max_position_embeddings"], 32);
}

TEST_F(Checkpoint, AcceptsHalfPrecisionAndScalarsOfOneElement) {
  const auto model = make_model(small_config(), 3);
  const auto directory = save(*model);
  rewrite(directory, [](auto& tensors) {
    for (auto& [name, tensor] : tensors) {
      if (name.ends_with("_proj.weight")) tensor = tensor.to(name.find(".q_") == name.npos ? at::kBFloat16 : at::kHalf);
      if (name == "s_E" || name == "s_F") tensor = tensor.view({1});
    }
  });
  const auto loaded = load_model(directory);
  for (size_t p = 0; p < model->parameters().size(); ++p) {
    const at::Tensor tensor = loaded->parameters()[p].tensor;
    EXPECT_EQ(tensor.scalar_type(), at::kFloat);
    EXPECT_TRUE(tensor.allclose(model->parameters()[p].tensor, 0.01));
  }
}

TEST_F(Checkpoint, SaysWhatDoesNotFit) {
  const auto model = make_model(small_config(), 3);
  auto directory = save(*model);
  rewrite(directory, [](auto& tensors) { find(tensors, "layers.1.s_w") = at::zeros({8}); });
  EXPECT_THAT(
      load_refusal(directory),
      HasSubstr("model: layers.1.s_w is [8] but config.json makes it [4]; was it trained with another recipe?"));

  directory = save(*model);
  rewrite(directory, [](auto& tensors) { tensors.erase(tensors.begin() + 5); });
  EXPECT_THAT(load_refusal(directory), HasSubstr("model.safetensors has no tensor \"layers.0."));

  directory = save(*model);
  rewrite(directory, [](auto& tensors) { tensors.push_back({"layers.9.s_w", at::zeros({4})}); });
  EXPECT_THAT(load_refusal(directory), HasSubstr("model.safetensors holds \"layers.9.s_w\", which is not a tensor of"));

  directory = save(*model);
  rewrite(directory, [](auto& tensors) { find(tensors, "s_E") = at::zeros({}, at::kLong); });
  EXPECT_THAT(load_refusal(directory), HasSubstr("s_E must be F32, F16 or BF16, but is Long"));
}

TEST_F(Checkpoint, SaysWhatIsWrongWithTheConfiguration) {
  const auto directory = save(*make_model(small_config(), 3));
  const auto with = [&](const std::string& text) {
    write_file_atomic(directory / "config.json", text);
    return load_refusal(directory);
  };
  EXPECT_THAT(with("{"), HasSubstr("config.json: is not JSON"));
  EXPECT_THAT(with(R"({"model_type":"multiscreen","model_type":"x"})"), HasSubstr("\"model_type\" comes twice"));
  EXPECT_THAT(with(R"({"model_type":"lama"})"), HasSubstr("config.json: unknown model_type \"lama\""));
  EXPECT_THAT(with(std::string(100'000, '[')), HasSubstr("levels of nesting"));
  // Sizes that no memory holds are compared with the file before anything is allocated.
  json huge = small_config();
  huge["vocab_size"] = int64_t{1} << 31;
  huge["hidden_size"] = 1 << 20;
  EXPECT_THAT(with(huge.dump()), HasSubstr("embed.weight is [37, 24] but config.json makes it [2147483648, 1048576]"));
}

TEST_F(Checkpoint, MayHaveTheKeysOfHuggingFacesTools) {
  const auto model = make_model(testing::small_model(), 3);
  const auto directory = save(*model);
  const json written = json::parse(read_file(directory / "config.json"));
  EXPECT_EQ(written["architectures"], json::array({"TransformerForCausalLM"}));
  EXPECT_EQ(written["torch_dtype"], "float32");
  const auto with = [&](const json& change) {
    json config = written;
    config.update(change);
    write_file_atomic(directory / "config.json", config.dump());
    std::string text = load_refusal(directory);
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  };
  const json all = {{"architectures", {"LlamaForCausalLM"}},
                    {"torch_dtype", "bfloat16"},
                    {"transformers_version", "5.23.0"},
                    {"use_cache", true},
                    {"tie_word_embeddings", true},
                    {"attention_bias", false},
                    {"head_dim", 6},
                    {"eos_token_id", {1, 2}}};
  EXPECT_EQ(with(all), "accepted");
  EXPECT_EQ(load_model(directory)->config(), model->config());

  EXPECT_THAT(with({{"attention_bias", true}}),
              HasSubstr("\"attention_bias\" must be false: Tamis's layers have no such biases, but is true"));
  EXPECT_THAT(with({{"head_dim", 8}}), HasSubstr("\"head_dim\" must be 6, \"hidden_size\" / \"num_attention_heads\","));
  EXPECT_THAT(with({{"tie_word_embeddings", false}}), HasSubstr("model.safetensors has no tensor \"head.weight\""));
  EXPECT_THAT(with({{"torch_dtype", "int8"}}), HasSubstr("\"torch_dtype\" must be \"float32\", \"float16\" or"));
  EXPECT_THAT(with({{"eos_token_id", 37}}), HasSubstr("\"eos_token_id\" must be a token id below \"vocab_size\" 37"));
  EXPECT_THAT(with({{"tie_word_embedings", true}}),
              HasSubstr("unknown model key \"tie_word_embedings\"; did you mean \"tie_word_embeddings\"?"));
}

TEST_F(Checkpoint, HoldsAHeadOfItsOwnOnlyIfItsConfigurationSaysSo) {
  const auto directory = save(*make_model(testing::small_model({{"tie_word_embeddings", false}}), 3));
  EXPECT_EQ(load_refusal(directory), "accepted");
  json config = json::parse(read_file(directory / "config.json"));
  config["tie_word_embeddings"] = true;
  write_file_atomic(directory / "config.json", config.dump());
  EXPECT_THAT(load_refusal(directory), HasSubstr("model.safetensors holds \"head.weight\", which is not a tensor of"));
}

TEST_F(Checkpoint, ChangesThatNeedOtherTensorsAreRefused) {
  const auto directory = save(*make_model(complete_config({{"model_type", "transformer"},
                                                           {"vocab_size", 37},
                                                           {"hidden_size", 24},
                                                           {"num_hidden_layers", 2},
                                                           {"num_attention_heads", 4}}),
                                          3));
  EXPECT_EQ(load_model(directory, read_changes(std::vector<std::string>{"rope_factor=4"}))->config()["rope_factor"], 4);
  for (const char* change : {"pattern=m", "ssmax=learned", "hidden_size=48", "rope_factor=0", "pattern=x"}) {
    try {
      load_model(directory, read_changes(std::vector<std::string>{change}));
      ADD_FAILURE() << change;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage) << error.what();
    }
  }
  for (const char* key : {"window", "alpha", "ssmax_scale", "mipe_threshold"}) {
    try {
      load_model(directory, read_changes(std::vector<std::string>{std::string(key) + "=2"}));
      ADD_FAILURE() << key;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      EXPECT_EQ(error.what(), "--set-model: \"" + std::string(key) + "\" would change nothing in this model");
    }
  }
  const auto windows = read_changes(std::vector<std::string>{"pattern=aw", "window=8"});
  EXPECT_EQ(load_model(directory, windows)->config()["window"], 8);
}

TEST_F(Checkpoint, SurvivesDamage) {
  const auto directory = save(*make_model(small_config({{"num_hidden_layers", 1}}), 3));
  const std::string whole = read_file(directory / "model.safetensors");
  const auto write = [&](const std::string& bytes) {
    fs::remove(directory / "model.safetensors");  // truncating instead would make some file systems flush every time
    FileWriter file(directory / "model.safetensors");
    file.write(bytes);
  };
  for (size_t length = 0; length < whole.size(); length += 1 + length / 4) {
    write(whole.substr(0, length));
    EXPECT_NE(load_refusal(directory), "accepted") << length;
  }
  uint64_t header_bytes = 0;
  std::copy_n(whole.data(), 8, reinterpret_cast<char*>(&header_bytes));
  Random random({1});
  int refused = 0;
  for (int trial = 0; trial < 500; ++trial) {
    std::string bytes = whole;
    const size_t at = random.below(8 + header_bytes);
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
    write(bytes);
    refused += load_refusal(directory) != "accepted";
  }
  EXPECT_GT(refused, 400);
}

TEST_F(Checkpoint, IsFoundInARun) {
  const auto model = make_model(small_config(), 3);
  const fs::path run = root_ / "run";
  make_directories(run / "checkpoints");
  const auto refused = [](const fs::path& path) { return refusal([&] { resolve_checkpoint(path); }); };
  EXPECT_THAT(refused(run), HasSubstr("holds no checkpoint; expected a checkpoint directory (config.json"));
  for (const char* step : {"step-9", "step-100", "step-20"}) save(*model, std::string("run/checkpoints/") + step);
  FileWriter(run / "checkpoints" / "step-300").write("not a directory");
  save(*model, "run/checkpoints/step-4x");
  EXPECT_EQ(resolve_checkpoint(run), run / "checkpoints" / "step-100");
  EXPECT_EQ(resolve_checkpoint(run / "checkpoints" / "step-9"), run / "checkpoints" / "step-9");
  EXPECT_THAT(refused(run / "nowhere"), HasSubstr("does not exist"));
  const fs::path newest = run / "checkpoints" / "step-200";
  make_directories(newest);
  EXPECT_THAT(refused(run), HasSubstr("step-200: damaged: it has no file config.json; restore it, or name another"));
  write_config(newest, model->config());
  EXPECT_THAT(refused(run), HasSubstr("step-200: damaged: it has no file model.safetensors; "));
  FileWriter(newest / "model-00001-of-00002.safetensors").write("a shard");
  EXPECT_THAT(refused(run), HasSubstr("step-200: damaged: it has no file model.safetensors.index.json; "));
  EXPECT_THAT(refused(run / "checkpoints" / "step-9" / "config.json"), HasSubstr("is a file; expected a checkpoint"));
}

}  // namespace
}  // namespace tamis::models
