#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <vector>

#include "tamis/models/mixer.h"
#include "tamis/models/stack_config.h"
#include "tamis/nn/streamed_matrix.h"

namespace tamis::models {

class StackState;

/// A layer of a Stack as decoding keeps it: matrices in one format, all else as it is.
struct DecodingLayer {
  const Mixer* mixer = nullptr;
  std::optional<TokenForm> form;  // nothing: the mixer has none, or kernels::multiply_rows does not know the matrices
  MixerCall call;                 // without the mixer's matrices, which are in `own`
  std::vector<std::optional<nn::StreamedMatrix>> own;  // the mixer's matrices, by their number in parameters()
  std::vector<nn::StreamedMatrix> mlp;                 // gate_up and down
  at::Tensor mixer_norm, mlp_norm;                     // [D]
};

/// One token of every state through all layers, which must have their forms, in one parallel region, or in one for each
/// kernels::vectors_together of them: x_BD holds the embedded tokens and becomes the residual stream after the last.
///
/// Threads meet four times a layer: after the heads, the output product, the MLP's inner rows and its outer ones. Every
/// weight is read once for all sequences of a region. Every number is computed whole by one thread, in an order that
/// depends on neither the number of threads nor the other sequences (but on whether there are more than
/// kernels::kFewVectors in a region). Room is made for all sequences first (StackState::begin); then nothing is
/// allocated but scratch memory: that of the first call, and what some attentions need for a list of keys
/// (AttentionToken).
void decode_token(const StackConfig& config, std::span<const DecodingLayer> layers, std::span<StackState* const> states,
                  float* x_BD);

}  // namespace tamis::models
