#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tamis/models/mixer.h"
#include "tamis/models/stack_config.h"
#include "tamis/nn/streamed_matrix.h"

namespace tamis::models {

class StackState;

/// A layer of a Stack as decode_token wants it: every matrix has rows().
struct TokenLayer {
  const Mixer* mixer;
  MixerCall call;
  TokenForm form;
  std::vector<std::optional<nn::StreamedMatrix>> own;  // of the mixer, by their number; nothing for what is no matrix
  nn::StreamedMatrix gate_up, down;
  at::Tensor mixer_norm, mlp_norm;
};

/// One token of every state, at most kernels::kMostVectors of them, through all layers in one parallel region: x_BD
/// holds the embedded tokens and becomes the residual stream after the last layer.
///
/// Threads meet four times a layer: after the heads, the output product, the MLP's inner rows and its outer ones. Every
/// weight is read once, whatever the number of sequences. Every number is computed whole by one thread, in an order
/// that does not depend on the number of threads. Nothing is allocated, apart from the room that caches need from time
/// to time and the first call's scratch memory.
void decode_token(const StackConfig& config, std::span<const TokenLayer> layers, std::span<StackState* const> states,
                  float* x_BD);

}  // namespace tamis::models
