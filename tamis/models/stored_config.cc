#include "tamis/models/stored_config.h"

#include <algorithm>
#include <array>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"

namespace tamis::models {
namespace {

using nlohmann::json;

const std::vector<std::string> kIgnored = {
    // Of the file.
    "_name_or_path", "_commit_hash", "architectures", "auto_map", "custom_pipelines", "name_or_path",
    "task_specific_params", "tokenizer_class", "transformers.js_config", "transformers_version", "unsloth_version",
    // Of training.
    "attention_dropout", "attn_pdrop", "embd_pdrop", "gradient_checkpointing", "hidden_dropout", "initializer_range",
    "labels_are_shifted", "resid_pdrop",
    // Of how the same numbers are computed.
    "_attn_implementation", "_attn_implementation_autoset", "attn_implementation", "chunk_size_feed_forward",
    "mipe_compute_dtype", "pretraining_tp", "softmask_compute_dtype", "strict_cache_positions", "strict_position_ids",
    "tf_legacy_loss", "torchscript", "use_bfloat16", "use_cache", "zero_pad_hidden_states",
    // Of what a call returns, and of other tasks.
    "add_cross_attention", "cross_attention_hidden_size", "decoder_start_token_id", "finetuning_task", "id2label",
    "is_decoder", "label2id", "num_labels", "output_attentions", "output_hidden_states", "output_scores", "prefix",
    "problem_type", "pruned_heads", "return_dict", "return_dict_in_generate", "sep_token_id", "tie_encoder_decoder",
    // Of generation, in files of transformers 4.
    "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id",
    "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
    "num_return_sequences", "remove_invalid_values", "repetition_penalty", "suppress_tokens", "temperature", "top_k",
    "top_p", "typical_p"};

const std::array<std::string, 3> kTokens = {"bos_token_id", "eos_token_id", "pad_token_id"};
const std::array<std::string, 2> kDtypes = {"dtype", "torch_dtype"};
const std::array<std::string, 3> kDtypeNames = {"bfloat16", "float16", "float32"};
const std::array<std::string, 4> kBiases = {"attention_bias", "bias", "mlp_bias", "use_bias"};
const std::string kMipePosition = "mipe_position_mode";
const std::string kMipeWrap = "mipe_reference_wrap_boundary";

/// Keys that repeat a setting of the model.
const std::vector<std::string> kRepeated = {
    "head_dim", "hidden_act", "num_key_value_heads", "is_encoder_decoder", "rms_norm_eps", kMipePosition, kMipeWrap};

template <typename List>
bool contains(const List& list, const std::string& name) {
  return std::ranges::find(list, name) != list.end();
}

bool is_checked(const std::string& key) {
  return contains(kTokens, key) || contains(kDtypes, key) || contains(kBiases, key) || contains(kRepeated, key);
}

[[noreturn]] void refuse(const std::string& key, const std::string& expected, const json& value) {
  fail(ExitCode::kUsage, "model: \"{}\" must be {}, but is {}", key, expected, shown(value));
}

void check_token(const std::string& key, const json& value, int64_t vocab_size) {
  const json list = value.is_array() ? value : json::array({value});
  for (const json& id : list) {
    const bool fits = id.is_number_integer() && id.get<double>() < static_cast<double>(vocab_size);
    // -1 is how some tools write that there is none.
    if (!fits || id.get<double>() < -1) {
      refuse(key, fmt::format("a token id below \"vocab_size\" {}, or a list of them", vocab_size), value);
    }
  }
}

void check_repeated(const std::string& key, const json& value, const ModelConfig& config) {
  const auto expect = [&](const json& expected, const std::string& why) {
    if (value != expected) refuse(key, fmt::format("{}, {}", expected.dump(), why), value);
  };
  if (key == "head_dim") expect(config.head_dim(), "\"hidden_size\" / \"num_attention_heads\"");
  if (key == "hidden_act" && config.has_mlp()) {
    expect(config.mlp == "gelu" ? "gelu" : "silu", fmt::format("as \"mlp\" is {}", quoted_name(config.mlp)));
  }
  if (key == "num_key_value_heads") expect(config.num_attention_heads, "\"num_attention_heads\"");
  if (key == "is_encoder_decoder") expect(false, "a decoder");
  if (key == "rms_norm_eps" && config.has_norms()) expect(config.norm_eps, "as \"norm_eps\"");
  if (key == kMipePosition) expect("paper_absolute", "the positions of the paper; `tamis convert` reads others");
}

}  // namespace

std::span<const std::string> ignored_keys() {
  return kIgnored;
}

json without_foreign_keys(const json& stored) {
  json result = stored;
  for (const auto& [key, value] : stored.items()) {
    if (contains(model_keys(), key)) continue;
    if (contains(kIgnored, key) || is_checked(key)) {
      result.erase(key);
      continue;
    }
    std::vector<std::string> known(model_keys().begin(), model_keys().end());
    throw Error(ExitCode::kUsage, unknown_name("model key", key, known));
  }
  return result;
}

void check_foreign_keys(const json& stored, const ModelConfig& config) {
  for (const auto& [key, value] : stored.items()) {
    if (value.is_null() || !is_checked(key)) continue;
    if (contains(kTokens, key)) check_token(key, value, config.vocab_size);
    if (contains(kDtypes, key) && !contains(kDtypeNames, value.is_string() ? value.get<std::string>() : "")) {
      refuse(key, "\"float32\", \"float16\" or \"bfloat16\"", value);
    }
    if (contains(kBiases, key) && value != false) refuse(key, "false: Tamis's layers have no such biases", value);
    if (contains(kRepeated, key)) check_repeated(key, value, config);
  }
}

json special_tokens(const json& stored) {
  json result = json::object();
  for (const std::string& key : kTokens) {
    if (stored.contains(key) && !stored[key].is_null()) result[key] = stored[key];
  }
  return result;
}

json to_stored_config(const json& complete_config, const json& special_tokens, const std::string& dtype) {
  json result = complete_config;
  std::string architecture = complete_config.at("model_type").get<std::string>() + "ForCausalLM";
  architecture[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(architecture[0])));
  result["architectures"] = json::array({architecture});
  result["torch_dtype"] = dtype;
  result.update(special_tokens);
  return result;
}

}  // namespace tamis::models
