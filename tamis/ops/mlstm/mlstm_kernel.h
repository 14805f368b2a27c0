#pragma once

#include <cstdint>

#include "tamis/kernels/rows.h"

// The mLSTM of one head on raw pointers: no torch, no allocation, no threads. Tokens are processed chunk by chunk, with
// products of matrices inside a chunk and a state between two chunks. Symbols as in README.md.

namespace tamis::kernels {

inline constexpr double kMlstmEpsilon = 1e-6;     // of the denominator
inline constexpr double kLargestNegativeM = 80;   // exp(-m) is infinite in float32 above 88, where h is 0
inline constexpr int64_t kMlstmMostTokens = 256;  // of a chunk

/// One number for each token, `stride` apart.
struct Series {
  float* data = nullptr;
  int64_t stride = 0;

  float& at(int64_t token) const { return data[token * stride]; }
};

/// Tokens that are processed together.
struct MlstmChunk {
  int64_t first = 0, count = 0;
  bool fresh = false;  // the first token begins a document: no state before it
};

struct MlstmHeadState {
  float* C = nullptr;  // [K][V]; null: there is none
  float* n = nullptr;  // [K]
  float* m = nullptr;  // one number
};

/// What both passes read.
struct MlstmHead {
  int64_t key_dim = 0, value_dim = 0;
  const MlstmChunk* chunks = nullptr;
  int64_t chunk_count = 0;
  int64_t tokens = 0;     // of all chunks
  int64_t longest = 0;    // tokens of the longest chunk
  int64_t continued = 0;  // chunks that are not fresh
  Rows q, k, v;
  Series i, f;
  MlstmHeadState start;
};

struct MlstmForward {
  MlstmHead in;
  Rows h;
  MlstmHeadState end;
  float* scratch = nullptr;  // mlstm_forward_scratch(in) numbers
};

int64_t mlstm_forward_scratch(const MlstmHead& in);
void mlstm_forward(const MlstmForward& work);

struct MlstmBackward {
  MlstmHead in;
  Rows dh;
  MlstmHeadState d_end;  // C null: zero
  Rows dq, dk, dv;
  Series di, df;
  MlstmHeadState d_start;    // C null: not written
  float* scratch = nullptr;  // mlstm_backward_scratch(in) numbers
};

int64_t mlstm_backward_scratch(const MlstmHead& in);
void mlstm_backward(const MlstmBackward& work);

}  // namespace tamis::kernels
