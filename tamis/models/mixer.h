#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tamis/models/model.h"
#include "tamis/models/probe.h"
#include "tamis/models/stack_config.h"

// What mixes information between positions: attention of some kind, mLSTM, screening. A stack (stack.h) puts mixers and
// gated MLPs in a row, and knows of a mixer only what stands here; mixers.cc has a line for each.

namespace tamis::models {

/// Draws initial weights: every tensor from a stream of its own.
class Initialiser {
 public:
  Initialiser(uint64_t seed, const StackConfig& config) : seed_(seed), config_(config) {}
  const StackConfig& config() const { return config_; }
  /// N(0, sqrt(2 / (5 D))).
  void inner(const at::Tensor& matrix);
  /// N(0, 2 / (L sqrt(D))): what adds to the residual stream.
  void residual(const at::Tensor& matrix);
  void normal(const at::Tensor& matrix, double deviation);

 private:
  uint64_t seed_, stream_ = 0;
  const StackConfig& config_;
};

/// What a call gives a mixer besides its input.
struct MixerCall {
  std::vector<at::Tensor> own;               // as parameters(): matrices in the compute dtype, all else float32
  std::optional<at::Tensor> position_scale;  // p_n of Scalable-Softmax, which all layers share
  std::optional<int64_t> window;             // of sliding-window attention, in the place of the configuration's

  const at::Tensor& operator[](size_t i) const { return own[i]; }
};

/// What a mixer remembers of one sequence.
class MixerState {
 public:
  virtual ~MixerState() = default;
  virtual int64_t bytes() const = 0;                      // memory it holds
  virtual int64_t bytes_after(int64_t tokens) const = 0;  // memory after that many more tokens, reserved at once
  virtual void reserve(int64_t) {}                        // makes room for that many more tokens at once
  virtual void begin(int64_t) {}                          // the next tokens may come: room for them, or throws
  virtual void end_token() {}                             // every head had its Mixer::step_head
  virtual std::unique_ptr<MixerState> fork() const = 0;   // what changes afterwards changes one of them only
  virtual void save(std::ostream& out) const = 0;
  /// What was saved after so many tokens; throws ExitCode::kInput when the bytes do not fit.
  virtual void load(std::istream& in, int64_t position) = 0;
};

/// Floating-point operations of a token besides the products with parameters, as in Flops.
struct MixerFlops {
  double similarities = 0, values = 0;
};

/// Rows [first, last) of one of a mixer's own matrices.
struct MatrixRows {
  size_t matrix;  // number in parameters()
  int64_t first, last;
};

/// How a token of decoding goes through a mixer without tensors: head by head, each on products of the input with rows
/// of its own; what all heads give, one after the other, is multiplied by the output matrix.
struct TokenForm {
  std::vector<std::vector<MatrixRows>> heads;  // as many rows for each head, in the order in which it takes them
  int64_t head_out;                            // numbers that a head gives
  size_t output;                               // number of the output matrix in parameters()

  /// Numbers that a head takes.
  int64_t head_rows() const {
    int64_t rows = 0;
    for (const MatrixRows& part : heads[0]) rows += part.last - part.first;
    return rows;
  }
};

class Mixer {
 public:
  virtual ~Mixer() = default;

  /// Trained tensors, named within their layer.
  virtual std::vector<Parameter> parameters() const = 0;
  virtual void initialise(Initialiser& initialiser) const = 0;

  /// x_BTD, normalised, in the compute dtype -> what is added to the residual stream. Differentiable.
  virtual at::Tensor forward(const at::Tensor& x_BTD, const MixerCall& call) const = 0;

  virtual std::unique_ptr<MixerState> new_state() const = 0;
  /// The same for a chunk of each sequence, row b after what states[b] has seen, which advances.
  virtual at::Tensor decode(const at::Tensor& x_BCD, const MixerCall& call,
                            std::span<MixerState* const> states) const = 0;

  /// One token in plain memory, for many small steps (stack_token.h). Nothing: decode takes tokens, too.
  virtual std::optional<TokenForm> token_form() const { return std::nullopt; }
  /// A head's products with the token's input, which may be overwritten -> what it gives. Of `call` only what is no
  /// matrix is there. Heads may come from different threads, between begin(1) and end_token of the state. Asked of
  /// mixers with a token_form.
  virtual void step_head(int64_t head, const MixerCall& call, MixerState& state, float* projected, float* out) const;

  /// The mean over a sequence of `length` tokens.
  virtual MixerFlops flops(int64_t length) const = 0;

  /// What forward does with values, to look at: the call has to outlive it.
  virtual ValuePath value_path(const at::Tensor& x_1TD, const MixerCall& call) const = 0;
  /// Keys that a query of each head sees; infinite without a window.
  virtual std::vector<double> windows() const = 0;
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
  std::vector<std::string> settings;         // keys of the configuration that it heeds beside the sizes
  void (*check)(const StackConfig& config);  // throws ExitCode::kUsage when the sizes do not fit; may be null
  std::unique_ptr<Mixer> (*make)(const StackConfig& config, at::Device device);
};

std::span<const MixerKind> known_mixers();
/// The kind of a letter; throws ExitCode::kUsage with all that are known.
const MixerKind& find_mixer(char letter);

}  // namespace tamis::models
