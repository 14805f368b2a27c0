#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tamis/nn/dropout.h"
#include "tamis/nn/safetensors.h"

namespace tamis::distributed {
class ContextGroup;
}

namespace tamis::models {

/// A tensor that training changes. `name` is the name in memory; checkpoints may split it (see checkpoint_tensors).
struct Parameter {
  std::string name;
  at::Tensor tensor;  // float32 leaf, requires_grad
};

/// What an activation is called: "embedding", "layers.2.screening", ...; in the order of the forward pass.
using Observer = std::function<void(const std::string& name, const at::Tensor& activation)>;

/// What a process sends for one sequence that it shares with others, in a layer's forward and backward pass: bytes, and
/// in how many messages that wait for one another.
struct ContextTraffic {
  int64_t forward = 0, backward = 0;
  int64_t forward_messages = 1, backward_messages = 1;
};

/// Called before and after a layer is computed, so that its parameters need to be in memory only between the two.
class LayerGuard {
 public:
  virtual ~LayerGuard() = default;
  virtual void before(int64_t layer) = 0;  // its forward pass, and later its backward pass
  virtual void after(int64_t layer) = 0;   // its forward pass
};

struct ForwardOptions {
  at::ScalarType compute_dtype = at::kFloat;  // of matrix products and mixers; the residual stream stays float32
  bool int8_weights = false;                  // decoding: matrices as int8, one scale per output channel
  bool expand_windows = false;                // SWE: windows beyond the training length become infinite
  double recompute = 0.0;                     // training: share of the layers that recompute their activations
  std::optional<int64_t> window;              // training: of sliding-window attention, instead of the configuration's
  std::optional<nn::Dropout> dropout;         // training: of the embedding and of every mixer's and MLP's output
  at::Tensor document_BT;                     // integers: tokens see only their own document; undefined: one document
  Observer observe;                           // of `hidden`: sees every activation; no recomputation then
  /// Training with context parallelism: this process has its part of every sequence, but the documents of all of it.
  distributed::ContextGroup* context = nullptr;
  LayerGuard* guard = nullptr;  // of `hidden`
};

/// A mixer's relevance map: [H, T, T] each, of one layer, for one sequence.
struct RelevanceMap {
  int64_t layer = 0;
  at::Tensor similarity;       // s_ij; undefined but for screening with the paper's shapes of Trim and Softmask
  at::Tensor trim;             // a_ij, undefined likewise
  at::Tensor softmask;         // m_ij, undefined likewise
  at::Tensor relevance;        // what multiplies the value
  std::vector<double> window;  // per head, tokens; infinity allowed
  std::vector<double> accept;  // per head, r; empty for mixers that have none
};

/// Floating-point operations, two for each multiply-add, by what they are spent on.
struct Flops {
  double weights = 0;       // products with parameters, the vocabulary head included
  double similarities = 0;  // queries times the keys that they can see, at the windows as learned
  double values = 0;        // summing the values, if every visible key were accepted

  /// What is executed when this share of the visible keys is accepted.
  double executed(double accepted_share) const { return weights + similarities + accepted_share * values; }
};

/// What a model keeps of a sequence to continue it; made by Model::new_state, advanced by Model::decode.
class DecodingState {
 public:
  virtual ~DecodingState() = default;
  virtual int64_t position() const = 0;  // tokens seen so far
  virtual int64_t bytes() const = 0;     // memory it holds
  /// Memory it would hold after reserve(tokens).
  virtual int64_t bytes_after(int64_t tokens) const = 0;
  /// Makes room for that many more tokens at once.
  virtual void reserve(int64_t tokens) = 0;
  virtual std::unique_ptr<DecodingState> fork() const = 0;
  virtual void save(std::ostream& out) const = 0;
  virtual void load(std::istream& in) = 0;  // throws ExitCode::kInput when the bytes do not fit this model
};

class Model {
 public:
  virtual ~Model() = default;

  /// The contents of config.json: model_type and every size.
  virtual const nlohmann::json& config() const = 0;
  virtual int64_t vocab_size() const = 0;
  virtual int64_t hidden_size() const = 0;
  virtual int64_t training_length() const = 0;  // max_position_embeddings

  /// Trained tensors in a fixed order.
  virtual std::vector<Parameter> parameters() const = 0;
  /// The other tensors of the model, which training does not change.
  virtual std::vector<at::Tensor> buffers() const { return {}; }
  /// Splits tensors shaped like parameters() (same order) into the checkpoint's names; views, no copies.
  virtual std::vector<nn::NamedTensor> checkpoint_tensors(std::span<const at::Tensor> like_parameters) const = 0;

  /// tokens_BT int64 -> x_BTD, float32, scaled so that logits = x . head_weight()^T, or c tanh of that / c with a soft
  /// cap c. Differentiable. Tokens of one document must be adjacent.
  virtual at::Tensor hidden(const at::Tensor& tokens_BT, const ForwardOptions& options) const = 0;
  /// [N, D], float32. Differentiable.
  virtual at::Tensor head_weight() const = 0;
  virtual std::optional<double> logit_soft_cap() const { return std::nullopt; }

  /// Advances states[b] by row b of tokens_BC and returns the final x_BCD as `hidden` would; C >= 1, any chunking. On
  /// another device than the CPU a single token is computed without waiting for the device: tokens_BC may be there,
  /// where ids are not checked and must be in the vocabulary, or on the CPU.
  virtual std::unique_ptr<DecodingState> new_state(const ForwardOptions& options) const = 0;
  virtual at::Tensor decode(const at::Tensor& tokens_BC, std::span<DecodingState* const> states) const = 0;

  /// Work of a token's forward pass, the mean over a sequence of `length` tokens; training costs three times that.
  /// `expand_windows` as in ForwardOptions.
  virtual Flops flops_per_token(int64_t length, bool expand_windows = false) const = 0;

  /// For measurements of speed: gives the parameters that it depends on the values of a trained model.
  virtual void set_as_trained() const {}

  /// What process `rank` of `size` sends in each layer for one sequence of which each has `tokens` tokens, with the
  /// windows as they are.
  virtual std::vector<ContextTraffic> context_traffic(int64_t tokens, int64_t rank, int64_t size,
                                                      at::ScalarType dtype) const;

  /// Inspection: one entry per layer.
  virtual std::vector<RelevanceMap> relevance(const at::Tensor& tokens_1T, const ForwardOptions& options) const = 0;
  /// The share of the last token's relevance that lies on tokens [first, last), float64 [L, H], on the CPU; 0 where a
  /// head accepts nothing. Memory O(T); time a few forward passes.
  virtual at::Tensor attention_mass(const at::Tensor& tokens_1T, int64_t first, int64_t last,
                                    const ForwardOptions& options) const = 0;
  /// Windows in tokens and acceptance widths of the heads of all screening layers.
  struct ScreeningHead {
    int64_t layer, head;
    double window, accept;
  };
  virtual std::vector<ScreeningHead> screening_heads() const = 0;
  /// Maps [T, T] that relevance() makes, of all layers and heads.
  virtual int64_t relevance_maps() const = 0;
};

/// How a model's parameters start.
struct Start {
  std::optional<uint64_t> seed;  // unset: uninitialised, to be filled from a checkpoint; initial weights need the CPU
  at::Device device = at::kCPU;  // at::kMeta: shapes without memory; other devices: see move_to
  /// Deviation of the matrices whose length has no effect: W_Q, W_K and W_V of screening and the unit-length embedding.
  /// An update of AdamW turns them by about lr / deviation. 0: as in "Screening Is Enough", appendix D.
  double unit_deviation = 0;
};

/// A model of a complete configuration; the same seed gives the same bits.
std::unique_ptr<Model> make_model(const nlohmann::json& complete_config, const Start& start);
std::unique_ptr<Model> make_model(const nlohmann::json& complete_config, uint64_t seed);

/// Moves parameters and buffers to a device. There must be no decoding states.
void move_to(const Model& model, at::Device device);

/// Checks a recipe's [model] table or a config.json and fills in every default (model_config.h). Throws
/// ExitCode::kUsage with the key and the nearest known name.
nlohmann::json complete_config(const nlohmann::json& config);
/// The presets that model_type can name.
std::span<const std::string> known_models();

/// Parameters of a configuration, without making the model.
struct ParameterCount {
  int64_t total = 0;
  int64_t without_embedding = 0;
};
ParameterCount count_parameters(const nlohmann::json& complete_config);

}  // namespace tamis::models
