#pragma once

#include <cstdint>
#include <span>

#include "tamis/models/multiscreen_state.h"

namespace tamis::models {

/// Whether decode_token can take these weights: on the CPU in a format that kernels::multiply_rows knows.
bool token_by_token(const MultiscreenWeights& weights);

/// One token of every state through all layers, Eq. (2) and (15)-(18), in one parallel region, or in one for each
/// kernels::vectors_together of them: x_BD holds the embedded tokens and becomes the residual stream after the last.
///
/// Threads meet twice a layer: a head's projections and its screening belong to one thread, then each takes some rows
/// of the output product. Every weight is read once for all sequences of a region. Every number is computed whole
/// by one thread, in an order that depends on neither the number of threads nor the other sequences (but on whether
/// there are more than kernels::kFewVectors in a region). Nothing is allocated, apart from the room that infinite
/// windows need from time to time and the first call's scratch memory.
void decode_token(const MultiscreenConfig& config, std::span<MultiscreenState* const> states, float* x_BD);

}  // namespace tamis::models
