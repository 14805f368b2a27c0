#pragma once

#include <span>

#include "tamis/models/sequence_state.h"

namespace tamis::models {

/// One token of every state through all layers, whose weights must be `token_by_token`, in one parallel region, or in
/// one for each kernels::vectors_together of them. x_BD [B, D] holds the embedded tokens and becomes the residual
/// stream after the last layer.
///
/// Threads synchronise twice a layer, and twice more with an MLP: after the heads, the output product, the MLP's inner
/// rows and its outer rows. Every weight is read once for all sequences of a region. Every number is computed whole by
/// one thread, in an order that depends on neither the number of threads nor the other sequences (but on whether there
/// are more than kernels::kFewVectors in a region). SequenceState::begin makes room for all sequences first. After that
/// only scratch memory is allocated, in the first call, and by some attentions a list of keys (AttentionToken).
void decode_token(std::span<SequenceState* const> states, float* x_BD);

}  // namespace tamis::models
