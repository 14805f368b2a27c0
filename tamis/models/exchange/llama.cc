// LlamaForCausalLM of Hugging Face's transformers. Its layer is the Transformer preset's: RMSNorm, softmax attention
// with rotary positions, RMSNorm, SwiGLU; the last RMSNorm has weights. Grouped keys and values are repeated for every
// head.

#include <ATen/ATen.h>

#include <optional>

#include "tamis/base/error.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"
#include "tamis/models/exchange/external_config.h"
#include "tamis/models/exchange/format.h"
#include "tamis/models/exchange/rotary_layout.h"

namespace tamis::models::exchange {
namespace {

using at::Tensor;
using nlohmann::json;

/// The names of a layer's tensors, behind "model.layers.N.".
constexpr const char* kMixerNorm = "input_layernorm.weight";
constexpr const char* kMlpNorm = "post_attention_layernorm.weight";

std::string layer_name(int64_t layer) {
  return "model.layers." + std::to_string(layer) + ".";
}

/// The rotations that an object describes, in Tamis's keys. `where` names it; `theta` is the base unless it has its
/// own.
json read_rope(const json& rope, const std::string& where, double theta) {
  ExternalConfig reader(rope, where);
  json result = {{"rope_theta", reader.number({"rope_theta"}, theta)}};
  const std::string type = reader.text("rope_type", reader.text("type", "default"));
  if (type == "linear") {
    result["rope_factor"] = reader.number({"factor"});
  } else if (type == "llama3") {
    result["rope_scaling"] = "llama3";
    result["rope_factor"] = reader.number({"factor"});
    result["rope_low_freq_factor"] = reader.number({"low_freq_factor"});
    result["rope_high_freq_factor"] = reader.number({"high_freq_factor"});
    result["rope_original_length"] = reader.size({"original_max_position_embeddings"});
  } else if (type != "default") {
    fail(ExitCode::kInput, R"({}: has the type {}; Tamis computes "default", "linear" and "llama3")", where,
         quoted_name(type));
  }
  for (const char* key : {"partial_rotary_factor", "attention_factor"}) {
    reader.require(key, 1.0, "other rotations differ");
  }
  reader.number({"factor"}, 1.0);
  reader.finish_part();
  return result;
}

/// `rope_scaling` of transformers 4, or `rope_parameters` of 5, either next to `rope_theta`. Where a file has both,
/// transformers uses the first alone, with its base, and ignores the second. Two that differ are refused.
json read_rotations(ExternalConfig& reader, const std::string& where) {
  const double theta = reader.number({"rope_theta"}, 10'000.0);
  reader.require("partial_rotary_factor", 1.0, "Tamis rotates all dimensions of a head");
  std::optional<json> result;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json rope = reader.value(key);
    if (rope.is_null() || rope == json::object()) continue;
    if (!rope.is_object()) reader.refuse_value(key, "must be an object, but is " + shown(rope));
    const json rotations = read_rope(rope, where + ": " + key, theta);
    if (result && *result != rotations) {
      reader.refuse_value(key, R"(and "rope_scaling" describe different rotations; leave one of them out)");
    }
    result = rotations;
  }
  return result.value_or(json{{"rope_theta", theta}});
}

class LlamaFormat final : public Format {
 public:
  std::string name() const override { return "llama"; }
  std::string description() const override { return "LlamaForCausalLM of transformers"; }

  bool recognises(const json& config, const TensorTable&) const override {
    return config.value("model_type", json()) == "llama";
  }

  bool has_rotary_layouts() const override { return true; }

  json import_config(const Source& source, const TensorTable& tensors, const FormatOptions& options) const override {
    ExternalConfig reader(source.config, source.where);
    const int64_t heads = reader.size({"num_attention_heads"}), width = reader.size({"hidden_size"});
    json result = {{"model_type", "transformer"},
                   {"vocab_size", reader.size({"vocab_size"})},
                   {"hidden_size", width},
                   {"num_hidden_layers", reader.size({"num_hidden_layers"})},
                   {"num_attention_heads", heads},
                   {"max_position_embeddings", reader.size({"max_position_embeddings"}, 2048)},
                   {"intermediate_size", reader.size({"intermediate_size"})},
                   {"norm_eps", reader.number({"rms_norm_eps"}, 1e-6)},
                   {"tie_word_embeddings", reader.boolean("tie_word_embeddings", false)},
                   {"final_norm_weight", true}};
    reader.require("hidden_act", "silu", "the MLP of the Transformer is SwiGLU");
    reader.require("is_encoder_decoder", false, "Tamis's models are decoders");
    reader.require("attention_bias", false, "Tamis's attention has no biases");
    reader.require("mlp_bias", false, "Tamis's MLPs have no biases");
    reader.require("quantization_config", json(), "only tensors in F32, F16 or BF16 are read");
    reader.require("sliding_window", json(), "Tamis reads a LLaMA with full attention only");
    reader.check_heads("num_attention_heads", heads, width);
    if (const int64_t groups = reader.size({"num_key_value_heads"}, heads); heads % groups != 0) {
      reader.refuse_value("num_key_value_heads",
                          fmt::format("must divide \"num_attention_heads\" {}, but is {}", heads, groups));
    }
    result.update(read_rotations(reader, source.where));
    if (reader.boolean("rope_interleaved", false) && options.rotary_layout.empty()) {
      reader.refuse_value("rope_interleaved",
                          "is true, which transformers ignores: say how the rows of W_Q and W_K are stored with "
                          "--rotary-layout interleaved, or half as transformers reads them");
    }
    for (const char* key : {"is_llama_config", "max_sequence_length"})
      reader.accept(key);  // transformers reads neither
    if (tensors.has_name_with(".bias")) {
      fail(ExitCode::kInput, "{}: the model has biases (tensors named .bias); Tamis's layers have none", source.where);
    }
    reader.finish();
    return result;
  }

  std::vector<LazyTensor> import_tensors(const Source& source, TensorTable& tensors, const ModelConfig& config,
                                         const FormatOptions& options) const override {
    const int64_t N = config.vocab_size, D = config.hidden_size, F = config.intermediate_size;
    const int64_t H = config.num_attention_heads, d = config.head_dim();
    const int64_t groups = ExternalConfig(source.config, source.where).size({"num_key_value_heads"}, H);
    const bool interleaved = is_interleaved(options);
    const auto all_heads = [&](const LazyTensor& grouped) {
      if (groups == H) return grouped;
      return computed(grouped.name, grouped, {H * d, D}, [=](const Tensor& rows) {
        return rows.unflatten(0, {groups, d}).repeat_interleave(H / groups, 0).flatten(0, 1);
      });
    };
    const auto rotary = [&](const LazyTensor& rows) { return interleaved ? to_half_split(rows, d) : rows; };

    std::vector<LazyTensor> result = {renamed("embed.weight", tensors.take("model.embed_tokens.weight", {N, D}))};
    for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
      const std::string from = layer_name(l), to = "layers." + std::to_string(l) + ".";
      const auto copy = [&](const char* new_name, const char* name, const Shape& shape) {
        result.push_back(renamed(to + new_name, tensors.take(from + name, shape)));
      };
      copy("mixer_norm.weight", kMixerNorm, {D});
      result.push_back(stacked(to + "qkv_proj.weight",
                               {rotary(tensors.take(from + "self_attn.q_proj.weight", {H * d, D})),
                                all_heads(rotary(tensors.take(from + "self_attn.k_proj.weight", {groups * d, D}))),
                                all_heads(tensors.take(from + "self_attn.v_proj.weight", {groups * d, D}))}));
      copy("o_proj.weight", "self_attn.o_proj.weight", {D, H * d});
      copy("mlp_norm.weight", kMlpNorm, {D});
      copy("gate_proj.weight", "mlp.gate_proj.weight", {F, D});
      copy("up_proj.weight", "mlp.up_proj.weight", {F, D});
      copy("down_proj.weight", "mlp.down_proj.weight", {D, F});
    }
    result.push_back(renamed("norm.weight", tensors.take("model.norm.weight", {D})));
    if (!config.tie_word_embeddings) {
      result.push_back(renamed("head.weight", tensors.take("lm_head.weight", {N, D})));
    } else {
      tensors.take_copy("lm_head.weight", "model.embed_tokens.weight", {N, D});
    }
    tensors.skip([](const std::string& name) { return name.ends_with(".rotary_emb.inv_freq"); });
    return result;
  }

  json export_config(const ModelConfig& config, const FormatOptions&) const override {
    check_is_llama(config);
    json result = {{"model_type", "llama"},
                   {"architectures", json::array({"LlamaForCausalLM"})},
                   {"vocab_size", config.vocab_size},
                   {"hidden_size", config.hidden_size},
                   {"num_hidden_layers", config.num_hidden_layers},
                   {"num_attention_heads", config.num_attention_heads},
                   {"num_key_value_heads", config.num_attention_heads},
                   {"head_dim", config.head_dim()},
                   {"max_position_embeddings", config.max_position_embeddings},
                   {"intermediate_size", config.intermediate_size},
                   {"hidden_act", "silu"},
                   {"rms_norm_eps", config.norm_eps},
                   {"rope_theta", config.rope_theta},
                   {"tie_word_embeddings", config.tie_word_embeddings},
                   {"attention_bias", false},
                   {"mlp_bias", false},
                   {"use_cache", true},
                   {"bos_token_id", nullptr},  // not 1 and 2, as transformers takes it without the keys
                   {"eos_token_id", nullptr}};
    if (config.rope_scaling == "llama3") {
      result["rope_scaling"] = {{"rope_type", "llama3"},
                                {"factor", config.rope_factor},
                                {"low_freq_factor", config.rope_low_freq_factor},
                                {"high_freq_factor", config.rope_high_freq_factor},
                                {"original_max_position_embeddings", config.rope_original_length}};
    } else if (config.rope_factor != 1) {
      result["rope_scaling"] = {{"rope_type", "linear"}, {"factor", config.rope_factor}};
    }
    return result;
  }

  std::vector<LazyTensor> export_tensors(TensorTable& tensors, const ModelConfig& config,
                                         const FormatOptions& options) const override {
    const int64_t N = config.vocab_size, D = config.hidden_size, F = config.intermediate_size;
    const bool interleaved = is_interleaved(options);
    const auto rotary = [&](const LazyTensor& rows) {
      return interleaved ? to_interleaved(rows, config.head_dim()) : rows;
    };
    std::vector<LazyTensor> result = {renamed("model.embed_tokens.weight", tensors.take("embed.weight", {N, D}))};
    for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
      const std::string to = layer_name(l), from = "layers." + std::to_string(l) + ".";
      const auto copy = [&](const char* new_name, const char* name, const Shape& shape) {
        result.push_back(renamed(to + new_name, tensors.take(from + name, shape)));
      };
      copy(kMixerNorm, "mixer_norm.weight", {D});
      const LazyTensor qkv = tensors.take(from + "qkv_proj.weight", {3 * D, D});
      result.push_back(rotary(rows(to + "self_attn.q_proj.weight", qkv, 0, D)));
      result.push_back(rotary(rows(to + "self_attn.k_proj.weight", qkv, D, D)));
      result.push_back(rows(to + "self_attn.v_proj.weight", qkv, 2 * D, D));
      copy("self_attn.o_proj.weight", "o_proj.weight", {D, D});
      copy(kMlpNorm, "mlp_norm.weight", {D});
      copy("mlp.gate_proj.weight", "gate_proj.weight", {F, D});
      copy("mlp.up_proj.weight", "up_proj.weight", {F, D});
      copy("mlp.down_proj.weight", "down_proj.weight", {D, F});
    }
    // The last RMSNorm of the paper's Transformer has no weights, which is weights of 1.
    result.push_back(config.final_norm_weight ? renamed("model.norm.weight", tensors.take("norm.weight", {D}))
                                              : filled("model.norm.weight", {D}, 1));
    if (!config.tie_word_embeddings) {
      result.push_back(renamed("lm_head.weight", tensors.take("head.weight", {N, D})));
    }
    return result;
  }

 private:
  static void check_is_llama(const ModelConfig& config) {
    const auto expect = [](bool fits, const std::string& what) {
      if (!fits) fail(ExitCode::kInput, "this model cannot be written as LLaMA: {}", what);
    };
    for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
      expect(config.mixer_of(l) == 'a', fmt::format("its pattern is \"{}\", not \"a\"", config.pattern));
    }
    expect(config.norm == "rms", "it has no norms");
    expect(config.mlp == "swiglu", fmt::format("its mlp is \"{}\", not \"swiglu\"", config.mlp));
    expect(config.embedding == "plain", "its embedding has unit length");
    expect(config.position == "rope", "it has no rotary positions");
    expect(!config.qk_norm, "it has QKNorm");
    expect(!config.strict.value_or(false), "its tokens do not see themselves (strict = true)");
    expect(!config.logit_soft_cap, "its logits have a soft cap");
    expect(config.ssmax == "none", "it has Scalable-Softmax");
  }
};

}  // namespace

const Format& llama_format() {
  static const LlamaFormat format;
  return format;
}

}  // namespace tamis::models::exchange
