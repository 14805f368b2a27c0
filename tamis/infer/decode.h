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

/// int8 weights are multiplied in float32 where a product has many vectors.
models::ForwardOptions forward_options(WeightFormat weights, bool expand_windows);

/// Several sequences of equal length that a model reads together. No gradients.
class Decoder {
 public:
  Decoder(const models::Model& model, int64_t sequences, const models::ForwardOptions& options);

  /// Reads tokens_BT (int64, any device) in chunks of at most `chunk_tokens` tokens over all sequences, so that memory
  /// does not grow with T beyond the decoding state; `visit(x_BCD, first)` gets each chunk's final x and the index in T
  /// of its first token. Throws ExitCode::kRuntime, before it reads, when memory cannot hold the states afterwards.
  void read(const at::Tensor& tokens_BT, int64_t chunk_tokens,
            const std::function<void(const at::Tensor& x_BCD, int64_t first)>& visit);

  /// Reads tokens_BT likewise and returns the logits after the last token, float32 [B, N].
  at::Tensor logits_after(const at::Tensor& tokens_BT, int64_t chunk_tokens);

  /// Makes room for that many more tokens at once. Throws ExitCode::kRuntime when memory cannot hold the states.
  void reserve(int64_t tokens);

  /// float32 [R, N], of the final x of any positions.
  at::Tensor logits(const at::Tensor& x_RD);

  /// Memory of all states together.
  int64_t state_bytes() const;

  /// The same sequences, to be continued in another way.
  Decoder fork() const;

 private:
  Decoder(const models::Model& model, const nn::StreamedMatrix& head_ND, at::Device device);
  void add(std::unique_ptr<models::DecodingState> state);

  const models::Model& model_;
  nn::StreamedMatrix head_ND_;  // as the model's matrices: float32, bfloat16 or int8
  at::Device device_;
  at::Tensor prepared_;  // scratch of logits
  std::vector<std::unique_ptr<models::DecodingState>> states_;
  std::vector<models::DecodingState*> state_pointers_;
};

/// int64 [1, T].
at::Tensor to_tensor(std::span<const int64_t> ids);

}  // namespace tamis::infer
