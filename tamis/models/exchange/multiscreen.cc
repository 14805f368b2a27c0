// Multiscreens of multiscreen-pytorch (github.com/dieOD/multiscreen-pytorch) and of its port to transformers
// (github.com/kuroganegames/Multiscreen-HF), whose tensors have the prefix "multiscreen.". Both store the inverse
// acceptance width, exp(sr) + 1 = 1 / r, so that their sr is -s_r. From a boundary on, by default the training length,
// they rotate by the position modulo w; the paper does not, and a converted model does so on request.

#include <ATen/ATen.h>

#include <array>

#include "tamis/base/error.h"
#include "tamis/models/exchange/external_config.h"
#include "tamis/models/exchange/format.h"

namespace tamis::models::exchange {
namespace {

using nlohmann::json;

constexpr const char* kPaperPositions = "paper_absolute";
constexpr const char* kWrappedPositions = "reference_mod_after_wrap_boundary";

/// Name here, name there, both within the layer.
const std::array<std::pair<const char*, const char*>, 8> kLayerTensors = {{{"q_proj.weight", "q_proj.weight"},
                                                                           {"k_proj.weight", "k_proj.weight"},
                                                                           {"v_proj.weight", "v_proj.weight"},
                                                                           {"g_proj.weight", "g_proj.weight"},
                                                                           {"o_proj.weight", "o_proj.weight"},
                                                                           {"s_w", "sw"},
                                                                           {"s_r", "sr"},
                                                                           {"s_O", "sO"}}};

Shape shape_of(const ModelConfig& config, std::string_view name) {
  const int64_t D = config.hidden_size;
  if (name == "q_proj.weight" || name == "k_proj.weight") return {config.key_width(), D};
  if (name == "v_proj.weight" || name == "g_proj.weight") return {config.value_width(), D};
  if (name == "o_proj.weight") return {D, config.value_width()};
  return {config.num_attention_heads};
}

LazyTensor negated(const LazyTensor& x) {
  return computed(x.name, x, x.shape, [](const at::Tensor& values) { return values.neg(); });
}

class MultiscreenFormat final : public Format {
 public:
  MultiscreenFormat(std::string name, std::string description, std::string prefix)
      : name_(std::move(name)), description_(std::move(description)), prefix_(std::move(prefix)) {}

  std::string name() const override { return name_; }
  std::string description() const override { return description_; }

  bool recognises(const json&, const TensorTable& tensors) const override {
    return tensors.contains(prefix_ + "layers.0.block.q_proj.weight");
  }

  bool may_wrap_positions() const override { return true; }

  json import_config(const Source& source, const TensorTable&, const FormatOptions& options) const override {
    ExternalConfig reader(source.config, source.where);
    const int64_t length = reader.size({"max_position_embeddings", "max_seq_len"}, 256);
    json result = {{"model_type", "multiscreen"},
                   {"vocab_size", reader.size({"vocab_size"})},
                   {"hidden_size", reader.size({"hidden_size", "hidden_dim"})},
                   {"num_hidden_layers", reader.size({"num_hidden_layers", "num_layers"})},
                   {"num_attention_heads", reader.size({"num_attention_heads", "num_heads"})},
                   {"key_dim", reader.size({"key_dim"}, 16)},
                   {"value_dim", reader.size({"value_dim"}, 64)},
                   {"max_position_embeddings", length},
                   {"mipe_threshold", reader.number({"mipe_threshold"}, 256.0)}};
    reader.require("tie_word_embeddings", true, "the head of a Multiscreen is its embedding");
    reader.require("is_encoder_decoder", false, "Tamis's models are decoders");
    const int64_t boundary = reader.size({"mipe_reference_wrap_boundary"}, length);
    const std::string mode = reader.text("mipe_position_mode", kWrappedPositions);
    if (mode != kPaperPositions && mode != kWrappedPositions) {
      reader.refuse_value("mipe_position_mode", fmt::format("must be \"{}\" or \"{}\", but is \"{}\"", kPaperPositions,
                                                            kWrappedPositions, mode));
    }
    if (options.wrap_positions && mode == kPaperPositions) {
      reader.refuse_value("mipe_position_mode",
                          fmt::format("is \"{}\": no position wraps; convert without --wrap-positions", mode));
    }
    if (options.wrap_positions) result["mipe_wrap_boundary"] = boundary;
    reader.finish();
    return result;
  }

  std::vector<LazyTensor> import_tensors(const Source&, TensorTable& tensors, const ModelConfig& config,
                                         const FormatOptions&) const override {
    std::vector<LazyTensor> result;
    for (const char* name : {"embed.weight", "s_E", "s_F"}) {
      const bool matrix = name == std::string_view("embed.weight");
      result.push_back(
          renamed(name, tensors.take(prefix_ + name, matrix ? Shape{config.vocab_size, config.hidden_size} : Shape{})));
    }
    for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
      for (const auto& [own, other] : kLayerTensors) {
        const LazyTensor tensor = tensors.take(there(l) + other, shape_of(config, own));
        result.push_back(renamed(here(l) + own, own == std::string_view("s_r") ? negated(tensor) : tensor));
      }
    }
    return result;
  }

  json export_config(const ModelConfig& config, const FormatOptions&) const override {
    check_is_multiscreen(config);
    json result = {{"vocab_size", config.vocab_size},
                   {"key_dim", config.key_dim},
                   {"value_dim", config.value_dim},
                   {"mipe_threshold", config.mipe_threshold}};
    const bool port = !prefix_.empty();
    // The keys of multiscreen-pytorch are the fields of its MultiscreenConfig.
    result[port ? "hidden_size" : "hidden_dim"] = config.hidden_size;
    result[port ? "num_hidden_layers" : "num_layers"] = config.num_hidden_layers;
    result[port ? "num_attention_heads" : "num_heads"] = config.num_attention_heads;
    result[port ? "max_position_embeddings" : "max_seq_len"] = config.max_position_embeddings;
    if (!port) {  // wraps at the training length, always
      if (config.mipe_wrap_boundary.value_or(config.max_position_embeddings) == config.max_position_embeddings) {
        return result;
      }
      fail(ExitCode::kInput, "this model cannot be written as {}: its positions wrap at {}, not at {}", name_,
           *config.mipe_wrap_boundary, config.max_position_embeddings);
    }
    result["model_type"] = "multiscreen";
    result["architectures"] = json::array({"MultiscreenForCausalLM"});
    result["tie_word_embeddings"] = true;
    result["mipe_position_mode"] = config.mipe_wrap_boundary ? kWrappedPositions : kPaperPositions;
    if (config.mipe_wrap_boundary) result["mipe_reference_wrap_boundary"] = *config.mipe_wrap_boundary;
    return result;
  }

  std::vector<LazyTensor> export_tensors(TensorTable& tensors, const ModelConfig& config,
                                         const FormatOptions&) const override {
    std::vector<LazyTensor> result;
    for (const char* name : {"embed.weight", "s_E", "s_F"}) {
      const bool matrix = name == std::string_view("embed.weight");
      result.push_back(
          renamed(prefix_ + name, tensors.take(name, matrix ? Shape{config.vocab_size, config.hidden_size} : Shape{})));
    }
    for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
      for (const auto& [own, other] : kLayerTensors) {
        const LazyTensor tensor = tensors.take(here(l) + own, shape_of(config, own));
        result.push_back(renamed(there(l) + other, own == std::string_view("s_r") ? negated(tensor) : tensor));
      }
    }
    return result;
  }

 private:
  static std::string here(int64_t layer) { return "layers." + std::to_string(layer) + "."; }
  std::string there(int64_t layer) const { return prefix_ + "layers." + std::to_string(layer) + ".block."; }

  void check_is_multiscreen(const ModelConfig& config) const {
    const auto expect = [&](bool fits, const std::string& what) {
      if (!fits) fail(ExitCode::kInput, "this model cannot be written as {}: {}", name_, what);
    };
    for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
      expect(config.mixer_of(l) == 's', fmt::format("its pattern is \"{}\", not \"s\"", config.pattern));
    }
    expect(config.norm == "none" && config.mlp == "none", "it has norms or MLPs");
    expect(config.embedding == "unit", "its embedding has no unit length");
    expect(config.screening_position == "mipe",
           fmt::format("its position is \"{}\", not \"mipe\"", config.screening_position));
    expect(config.tanh_norm && config.gate && config.output_scale, "it lacks TanhNorm, the gate or s_O");
    expect(!config.fixed_r, "its acceptance width is fixed");
    expect(config.has_paper_shapes(), "its Trim or Softmask has another shape");
    expect(!config.logit_soft_cap, "its logits have a soft cap");
  }

  std::string name_, description_, prefix_;
};

}  // namespace

const Format& multiscreen_pytorch_format() {
  static const MultiscreenFormat format("multiscreen-pytorch", "dieOD/multiscreen-pytorch", "");
  return format;
}

const Format& multiscreen_hf_format() {
  static const MultiscreenFormat format("multiscreen-hf", "MultiscreenForCausalLM of kuroganegames/Multiscreen-HF",
                                        "multiscreen.");
  return format;
}

}  // namespace tamis::models::exchange
