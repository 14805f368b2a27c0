#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tamis/models/model.h"
#include "tamis/models/model_config.h"
#include "tamis/models/probe.h"

// A mixer moves information between positions: attention of some kind, mLSTM, screening. The rest of the model depends
// only on this interface; mixers/mixers.cc registers each mixer in one line.

namespace tamis::models {

/// Draws initial weights, every tensor from a random stream of its own.
class Initialiser {
 public:
  /// `unit_deviation` as in Start.
  Initialiser(uint64_t seed, const ModelConfig& config, double unit_deviation = 0)
      : seed_(seed), config_(config), unit_deviation_(unit_deviation) {}
  /// N(0, sqrt(2 / (5 D))).
  void inner(const at::Tensor& matrix);
  /// N(0, 2 / (L sqrt(D))), for a matrix whose product is added to the residual stream.
  void residual(const at::Tensor& matrix);
  void normal(const at::Tensor& matrix, double deviation);
  /// N(0, deviation), or the deviation of Start, for a matrix whose length has no effect because its rows or its
  /// products are scaled to unit length.
  void unit(const at::Tensor& matrix, double deviation);

 private:
  uint64_t seed_, stream_ = 0;
  const ModelConfig& config_;
  double unit_deviation_;
};

/// Rows of a trained tensor, under the name that a checkpoint gives them.
struct CheckpointPart {
  std::string name;
  int64_t rows;
};

/// A trained tensor, named within its layer. A checkpoint holds its parts, or the whole tensor where it has none.
struct LayerParameter {
  std::string name;
  at::Tensor tensor;
  std::vector<CheckpointPart> parts = {};
};

/// What a pass over a layer gives its mixer besides the input.
struct MixerCall {
  std::vector<at::Tensor> weights;               // as Mixer::weights; in decoding the matrices are undefined
  at::Tensor position_scale;                     // p_n of Scalable-Softmax, shared by all layers; undefined without one
  std::optional<int64_t> window;                 // replaces the configuration's sliding window
  std::optional<double> expand_beyond;           // SWE: learned windows beyond this many tokens become infinite
  bool recompute = false;                        // training: keep only the input (mixers with `recomputes`)
  std::optional<at::Tensor> document;            // int [B, T]: a token sees only its own document; never in decoding
  Observer observe;                              // if set, sees the mixer's own activations
  distributed::ContextGroup* context = nullptr;  // shares the sequences, as in ForwardOptions; never in decoding
};

/// What a mixer keeps of one sequence.
class MixerState {
 public:
  virtual ~MixerState() = default;
  virtual int64_t bytes() const = 0;                      // memory held now
  virtual int64_t bytes_after(int64_t tokens) const = 0;  // memory after reserve(tokens)
  virtual void reserve(int64_t) {}                        // makes room for this many more tokens
  virtual void begin(int64_t) {}                          // before every decoding call: makes room, or throws
  virtual void end_token() {}                             // after every head has taken a single token
  /// An independent copy; it may share memory that neither changes.
  virtual std::unique_ptr<MixerState> fork() const = 0;
  virtual void save(std::ostream& out) const = 0;
  /// Reads what was saved after `position` tokens; throws ExitCode::kInput when the bytes do not fit.
  virtual void load(std::istream& in, int64_t position) = 0;
};

/// Floating-point operations per token apart from the products with parameters, as in Flops.
struct MixerFlops {
  double similarities = 0, values = 0;
};

/// Of rows that distributed::ContextGroup::with_left exchanges: process `rank` of `size`, each with `tokens` tokens.
ContextTraffic context_traffic(const std::vector<int64_t>& halos, int64_t row_bytes, int64_t tokens, int64_t rank,
                               int64_t size);

/// A mixer's matrices arranged for decoding. The input is multiplied by `heads`, each head turns its own rows of the
/// product into `output.size(1) / count` numbers, and all of these are multiplied by `output`.
struct HeadMatrices {
  int64_t count;      // H
  at::Tensor heads;   // [H R, D]: R rows for each head, adjacent in memory
  at::Tensor output;  // [D, H V]
};

/// `parts` [H w, D], each blocked by head, as one matrix that holds all rows of a head together: [H sum(w), D].
at::Tensor rows_by_head(const std::vector<at::Tensor>& parts, int64_t heads);

/// A single token of one head on plain memory: projected [R], which may be overwritten, -> out [V]. Different threads
/// may take different heads of one state, between MixerState::begin(1) and end_token.
using HeadStep = std::function<void(int64_t head, MixerState& state, float* projected, float* out)>;

class Mixer {
 public:
  virtual ~Mixer() = default;

  virtual std::vector<LayerParameter> parameters() const = 0;
  /// Tensors that `forward` reads and training does not change, such as fixed acceptance widths. Checkpoints do not
  /// hold them: the constructor makes them.
  virtual std::vector<at::Tensor> buffers() const { return {}; }
  virtual void initialise(Initialiser& initialiser) const = 0;
  /// What `forward` reads, made from the parameters: matrices in `dtype`, all else float32. Differentiable. By default
  /// the parameters themselves.
  virtual std::vector<at::Tensor> weights(at::ScalarType dtype) const;

  /// x_BTD in the dtype of the matrices -> what is added to the residual stream. Differentiable.
  virtual at::Tensor forward(const at::Tensor& x_BTD, const MixerCall& call) const = 0;
  /// `forward` keeps only its input when `call.recompute` is set, faster than running all of it again.
  virtual bool recomputes() const { return false; }

  // Decoding: the model multiplies by the matrices, the mixer does what lies between.
  virtual HeadMatrices head_matrices(const std::vector<at::Tensor>& weights) const = 0;
  virtual std::unique_ptr<MixerState> new_state(std::optional<double> expand_beyond) const = 0;
  /// A chunk of each sequence, row b after what states[b] has seen: projected_BCHR -> [B, C, H, V], same dtype.
  /// Advances the states.
  virtual at::Tensor decode(const at::Tensor& projected_BCHR, const MixerCall& call,
                            std::span<MixerState* const> states) const = 0;
  /// `decode` for single tokens. Absent where only `decode` is implemented.
  virtual std::optional<HeadStep> head_step(const MixerCall&) const { return std::nullopt; }
  /// An estimate of a head's step in nanoseconds, without its product, to balance threads.
  virtual double step_cost(int64_t /*head*/, const MixerState&) const { return 0; }

  /// For measurements of speed: gives the parameters that it depends on the values of a trained model.
  virtual void set_as_trained() const {}

  /// Mean per token over a sequence of `length` tokens.
  virtual MixerFlops flops(int64_t length, std::optional<double> expand_beyond) const = 0;

  /// What process `rank` of `size` sends, each with `tokens` tokens of a sequence; matrices in `dtype`.
  virtual ContextTraffic context_traffic(int64_t tokens, int64_t rank, int64_t size, at::ScalarType dtype) const = 0;

  // Inspection.
  /// What `forward` does with values. The call has to outlive it.
  virtual ValuePath value_path(const at::Tensor& x_1TD, const MixerCall& call) const = 0;
  /// All maps of the layer for one sequence; map.layer is left to the caller.
  virtual RelevanceMap relevance(const at::Tensor& x_1TD, const MixerCall& call) const;
  /// Tokens that a query of each head sees, before any expansion; infinite without a window. On the meta device
  /// the initial windows.
  virtual std::vector<double> windows() const = 0;
  /// Acceptance width of each head; empty for mixers without acceptance widths. Mixers that have them also learn their
  /// windows.
  virtual std::vector<double> acceptance_widths() const { return {}; }
  /// Whether windows longer than the training length can be expanded (SWE).
  virtual bool expands_windows() const { return false; }
};

/// Which keys of the window a mixer takes values from.
enum class Support {
  kWindow,    // all of them, each with a weight
  kSelected,  // those that it accepts; the others weigh exactly 0
};

/// A mixer's line in the registry.
struct MixerKind {
  char letter;       // in a pattern
  std::string name;  // in texts
  Support support;
  std::vector<std::string> settings;         // keys of the configuration that it uses besides the sizes
  void (*check)(const ModelConfig& config);  // throws ExitCode::kUsage when the sizes do not fit; may be null
  std::unique_ptr<Mixer> (*make)(const ModelConfig& config, at::Device device);
};

std::span<const MixerKind> known_mixers();
/// The kind of a letter; throws ExitCode::kUsage with all that are known.
const MixerKind& find_mixer(char letter);

}  // namespace tamis::models
