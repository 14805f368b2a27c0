#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tamis/infer/options.h"
#include "tamis/models/model.h"
#include "tamis/nn/streamed_matrix.h"

namespace tamis::infer {

/// Options of a forward pass with weights of this format. int8 weights are multiplied in float32 when a product has
/// many vectors.
models::ForwardOptions forward_options(WeightFormat weights, bool expand_windows);

/// Throws ExitCode::kUsage for int8 weights on a device other than the CPU: only there they are multiplied as they are.
void check_weights(const models::ForwardOptions& options, at::Device device);

/// A batch of sequences of equal length with their decoding states. No gradients.
class Decoder {
 public:
  /// Throws as check_weights.
  Decoder(const models::Model& model, int64_t sequences, const models::ForwardOptions& options);

  /// Reads tokens_BT (int64, any device) in chunks of at most `chunk_tokens` tokens over all sequences, so that only
  /// the decoding state grows with T. Calls `visit(x_BCD, first)` with each chunk's final x and the index in T of its
  /// first token. Throws ExitCode::kRuntime, before reading, when memory cannot hold the resulting states.
  void read(const at::Tensor& tokens_BT, int64_t chunk_tokens,
            const std::function<void(const at::Tensor& x_BCD, int64_t first)>& visit);

  /// Forgets all tokens, so that a new document can begin.
  void reset();

  /// Reads tokens_BT in the same way and returns the logits after the last token, float32 [B, N].
  at::Tensor logits_after(const at::Tensor& tokens_BT, int64_t chunk_tokens);

  /// Allocates the states for that many more tokens at once. Throws ExitCode::kRuntime when memory cannot hold them.
  void reserve(int64_t tokens);

  /// Logits, float32 [R, N], for the final x of any R positions.
  at::Tensor logits(const at::Tensor& x_RD);

  /// Total memory of all states, in bytes.
  int64_t state_bytes() const;

  /// An independent copy with the same sequences, which can be continued differently.
  Decoder fork() const;

 private:
  Decoder(const models::Model& model, const nn::StreamedMatrix& head_ND, const models::ForwardOptions& options);
  void add(std::unique_ptr<models::DecodingState> state);
  /// Of the final x and the matrix of the head.
  at::Tensor products(const at::Tensor& x_RD);

  const models::Model& model_;
  nn::StreamedMatrix head_ND_;  // in the format of the model's matrices: float32, bfloat16 or int8
  at::Tensor prepared_;         // scratch memory of logits()
  models::ForwardOptions options_;
  std::vector<std::unique_ptr<models::DecodingState>> states_;
  std::vector<models::DecodingState*> state_pointers_;
};

/// The ids as an int64 tensor [1, T].
at::Tensor to_tensor(std::span<const int64_t> ids);

}  // namespace tamis::infer
