// xLSTMForCausalLM of Hugging Face's transformers, NX-AI's xLSTM-large: blocks of mLSTM and a gated MLP, each behind an
// RMSNorm. The mixer of the letter `m` computes the same: gates with biases, soft-capped at 15; keys half as wide as
// values; LayerNorm of each head; output gate; a soft cap of the logits, 30 tanh(z / 30). What differs is refused:
// another cap of the gates, other widths and biases of projections.

#include <ATen/ATen.h>

#include <cmath>

#include "tamis/base/error.h"
#include "tamis/models/exchange/external_config.h"
#include "tamis/models/exchange/format.h"

namespace tamis::models::exchange {
namespace {

using nlohmann::json;

constexpr const char* kCap = "output_logit_soft_cap";
constexpr double kDefaultCap = 30.0;
constexpr double kNoCap = 1e6;  // changes no logit by a bit of float32; transformers requires a number

int64_t rounded_up(double size, int64_t multiple) {
  // As transformers computes it: truncated to whole numbers last.
  return static_cast<int64_t>(std::floor((size + static_cast<double>(multiple) - 1) / static_cast<double>(multiple))) *
         multiple;
}

class XlstmFormat final : public Format {
 public:
  std::string name() const override { return "xlstm"; }
  std::string description() const override { return "xLSTMForCausalLM of transformers, NX-AI's xLSTM-large"; }

  bool recognises(const json& config, const TensorTable&) const override {
    return config.value("model_type", json()) == "xlstm";
  }

  json import_config(const Source& source, const TensorTable&, const FormatOptions&) const override {
    ExternalConfig reader(source.config, source.where);
    const int64_t D = reader.size({"hidden_size", "embedding_dim"}, 4096);
    const double factor = reader.number({"ffn_proj_factor"}, 2.667);
    const int64_t multiple = reader.size({"ffn_round_up_to_multiple_of"}, 64);
    const int64_t heads = reader.size({"num_heads"}, 8);
    json result = {{"model_type", "swax"},
                   {"pattern", "m"},
                   {"vocab_size", reader.size({"vocab_size"}, 50'304)},
                   {"hidden_size", D},
                   {"num_hidden_layers", reader.size({"num_hidden_layers", "num_blocks"}, 32)},
                   {"num_attention_heads", heads},
                   {"intermediate_size", rounded_up(static_cast<double>(D) * factor, multiple)},
                   {"norm_eps", reader.number({"norm_eps"}, 1e-6)},
                   {"tie_word_embeddings", reader.boolean("tie_word_embeddings", false)},
                   {"final_norm_weight", true}};
    reader.require("use_bias", false, "the projections of Tamis's mLSTM have no biases");
    reader.require("add_out_norm", true, "Tamis's models have a norm before the head");
    reader.require("qk_dim_factor", 0.5, "the keys of Tamis's mLSTM are half as wide as the model");
    reader.require("v_dim_factor", 1.0, "the values of Tamis's mLSTM are as wide as the model");
    reader.require("gate_soft_cap", 15.0, "the gates of Tamis's mLSTM are capped at 15");
    reader.require("eps", 1e-6, "the denominator of Tamis's mLSTM has this summand");
    reader.require("weight_mode", "single", "only separate projections are read");
    // Keys of NX-AI's own files, which transformers ignores: xLSTM-7B has the values that it computes.
    reader.require("add_qk_norm", false, "Tamis's mLSTM does not normalise queries and keys");
    reader.require("add_post_norm", false, "Tamis's blocks have no norms behind the mixer and the MLP");
    reader.require("add_post_blocks_norm", true, "Tamis's models have a norm before the head");
    reader.require("cell_norm_eps", result["norm_eps"], "all norms of Tamis's models share \"norm_eps\"");
    reader.check_heads("num_heads", heads, D);
    const bool null = source.config.contains(kCap) && source.config[kCap].is_null();  // no cap; absent: the default
    const double cap = reader.number({kCap}, null ? kNoCap : kDefaultCap);
    if (cap < kNoCap) result["logit_soft_cap"] = cap;
    for (const char* key :
         {"autocast_kernel_dtype", "chunk_size", "chunkwise_kernel", "inference_state_dtype", "max_inference_chunksize",
          "mode", "norm_reduction_force_float32", "return_last_states", "sequence_kernel", "step_kernel"}) {
      reader.accept(key);  // of how the same numbers are computed
    }
    for (const char* key : {"add_embedding_dropout", "add_forward_backend_padding", "force_bos_token_insert",
                            "igate_bias_init_range", "mlstm_round_up_to_multiple_of"}) {
      reader.accept(key);  // of training and texts; rounded widths are those of the tensors, whose shapes are checked
    }
    reader.finish();
    return result;
  }

  std::vector<LazyTensor> import_tensors(const Source&, TensorTable& tensors, const ModelConfig& config,
                                         const FormatOptions&) const override {
    const Sizes s(config);
    std::vector<LazyTensor> result = {renamed("embed.weight", tensors.take("backbone.embeddings.weight", {s.N, s.D}))};
    for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
      const std::string to = "layers." + std::to_string(l) + ".", from = "backbone.blocks." + std::to_string(l) + ".";
      const auto take = [&](const char* name, const Shape& shape) { return tensors.take(from + name, shape); };
      const auto copy = [&](const char* own, const char* name, const Shape& shape) {
        result.push_back(renamed(to + own, take(name, shape)));
      };
      copy("mixer_norm.weight", "norm_mlstm.weight", {s.D});
      result.push_back(
          stacked(to + "qkvo_proj.weight",
                  {take("mlstm_layer.q.weight", {s.D / 2, s.D}), take("mlstm_layer.k.weight", {s.D / 2, s.D}),
                   take("mlstm_layer.v.weight", {s.D, s.D}), take("mlstm_layer.ogate_preact.weight", {s.D, s.D})}));
      result.push_back(stacked(to + "gates.weight", {take("mlstm_layer.igate_preact.weight", {s.H, s.D}),
                                                     take("mlstm_layer.fgate_preact.weight", {s.H, s.D})}));
      copy("input_bias", "mlstm_layer.igate_preact.bias", {s.H});
      copy("forget_bias", "mlstm_layer.fgate_preact.bias", {s.H});
      copy("norm.weight", "mlstm_layer.multihead_norm.weight", {s.D});
      copy("out_proj.weight", "mlstm_layer.out_proj.weight", {s.D, s.D});
      copy("mlp_norm.weight", "norm_ffn.weight", {s.D});
      copy("gate_proj.weight", "ffn.proj_up_gate.weight", {s.F, s.D});
      copy("up_proj.weight", "ffn.proj_up.weight", {s.F, s.D});
      copy("down_proj.weight", "ffn.proj_down.weight", {s.D, s.F});
    }
    result.push_back(renamed("norm.weight", tensors.take("backbone.out_norm.weight", {s.D})));
    if (!config.tie_word_embeddings) {
      result.push_back(renamed("head.weight", tensors.take("lm_head.weight", {s.N, s.D})));
    } else {
      tensors.take_copy("lm_head.weight", "backbone.embeddings.weight", {s.N, s.D});
    }
    return result;
  }

  json export_config(const ModelConfig& config, const FormatOptions&) const override {
    const auto expect = [](bool fits, const std::string& what) {
      if (!fits) fail(ExitCode::kInput, "this model cannot be written as xLSTM: {}", what);
    };
    for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
      expect(config.mixer_of(l) == 'm', fmt::format("its pattern is \"{}\", not \"m\"", config.pattern));
    }
    expect(config.norm == "rms", "it has no norms");
    expect(config.mlp == "swiglu", fmt::format("its mlp is \"{}\", not \"swiglu\"", config.mlp));
    expect(config.embedding == "plain", "its embedding has unit length");
    return {
        {"model_type", "xlstm"},
        {"architectures", json::array({"xLSTMForCausalLM"})},
        {"vocab_size", config.vocab_size},
        {"hidden_size", config.hidden_size},
        {"embedding_dim", config.hidden_size},
        {"num_hidden_layers", config.num_hidden_layers},
        {"num_blocks", config.num_hidden_layers},
        {"num_heads", config.mlstm_heads},
        {"norm_eps", config.norm_eps},
        {"qk_dim_factor", 0.5},
        {"v_dim_factor", 1.0},
        // A multiple of 1 of the exact width.
        {"ffn_proj_factor", static_cast<double>(config.intermediate_size) / static_cast<double>(config.hidden_size)},
        {"ffn_round_up_to_multiple_of", 1},
        {"gate_soft_cap", 15.0},
        {kCap, config.logit_soft_cap.value_or(kNoCap)},
        {"weight_mode", "single"},
        {"use_bias", false},
        {"add_out_norm", true},
        {"eps", 1e-6},
        {"autocast_kernel_dtype", "float32"},
        {"tie_word_embeddings", config.tie_word_embeddings},
        {"bos_token_id", nullptr},  // not 0, 2 and 1, as transformers takes it without the keys
        {"eos_token_id", nullptr},
        {"pad_token_id", nullptr}};
  }

  std::vector<LazyTensor> export_tensors(TensorTable& tensors, const ModelConfig& config,
                                         const FormatOptions&) const override {
    const Sizes s(config);
    std::vector<LazyTensor> result = {renamed("backbone.embeddings.weight", tensors.take("embed.weight", {s.N, s.D}))};
    for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
      const std::string from = "layers." + std::to_string(l) + ".", to = "backbone.blocks." + std::to_string(l) + ".";
      const auto copy = [&](const char* name, const char* own, const Shape& shape) {
        result.push_back(renamed(to + name, tensors.take(from + own, shape)));
      };
      copy("norm_mlstm.weight", "mixer_norm.weight", {s.D});
      const LazyTensor qkvo = tensors.take(from + "qkvo_proj.weight", {3 * s.D, s.D});
      result.push_back(rows(to + "mlstm_layer.q.weight", qkvo, 0, s.D / 2));
      result.push_back(rows(to + "mlstm_layer.k.weight", qkvo, s.D / 2, s.D / 2));
      result.push_back(rows(to + "mlstm_layer.v.weight", qkvo, s.D, s.D));
      result.push_back(rows(to + "mlstm_layer.ogate_preact.weight", qkvo, 2 * s.D, s.D));
      const LazyTensor gates = tensors.take(from + "gates.weight", {2 * s.H, s.D});
      result.push_back(rows(to + "mlstm_layer.igate_preact.weight", gates, 0, s.H));
      result.push_back(rows(to + "mlstm_layer.fgate_preact.weight", gates, s.H, s.H));
      copy("mlstm_layer.igate_preact.bias", "input_bias", {s.H});
      copy("mlstm_layer.fgate_preact.bias", "forget_bias", {s.H});
      copy("mlstm_layer.multihead_norm.weight", "norm.weight", {s.D});
      copy("mlstm_layer.out_proj.weight", "out_proj.weight", {s.D, s.D});
      copy("norm_ffn.weight", "mlp_norm.weight", {s.D});
      copy("ffn.proj_up_gate.weight", "gate_proj.weight", {s.F, s.D});
      copy("ffn.proj_up.weight", "up_proj.weight", {s.F, s.D});
      copy("ffn.proj_down.weight", "down_proj.weight", {s.D, s.F});
    }
    result.push_back(config.final_norm_weight ? renamed("backbone.out_norm.weight", tensors.take("norm.weight", {s.D}))
                                              : filled("backbone.out_norm.weight", {s.D}, 1));
    if (!config.tie_word_embeddings) {
      result.push_back(renamed("lm_head.weight", tensors.take("head.weight", {s.N, s.D})));
    }
    return result;
  }

 private:
  struct Sizes {
    explicit Sizes(const ModelConfig& config)
        : N(config.vocab_size), D(config.hidden_size), F(config.intermediate_size), H(config.mlstm_heads) {}
    int64_t N, D, F, H;
  };
};

}  // namespace

const Format& xlstm_format() {
  static const XlstmFormat format;
  return format;
}

}  // namespace tamis::models::exchange
