#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace tamis::ops {

/// The state of a sequence. Only exp(m) C and exp(m) n matter; m keeps them in range.
struct MlstmState {
  at::Tensor C_BHKV, n_BHK, m_BH;
};

struct MlstmOptions {
  std::optional<MlstmState> state;     // before the first token; unset: C = 0, n = 0, m = 0
  int64_t chunk = 64;                  // tokens that are processed together: affects speed, not results
  std::optional<at::Tensor> document;  // int [B, T]: the state is reset before a token that begins another document
};

/// Matrix memory with exponential gates (mLSTM). Beck et al., "xLSTM: Extended Long Short-Term Memory"; used by SWAX.
///
///   m_t = max(log sigmoid(f_t) + m_{t-1}, i_t)                                                         (1)
///   C_t = exp(log sigmoid(f_t) + m_{t-1} - m_t) C_{t-1} + exp(i_t - m_t) k_t v_t^T                       (2)
///   n_t = exp(log sigmoid(f_t) + m_{t-1} - m_t) n_{t-1} + exp(i_t - m_t) k_t                             (3)
///   h_t = C_t^T q'_t / (max(|n_t . q'_t|, exp(-m_t)) + 1e-6),   q' = q / sqrt(K)                         (4)
///
/// q_BTHK, k_BTHK    queries and keys; 1 / sqrt(K) is applied here
/// v_BTHV            values
/// i_BTH, f_BTH      input and forget gates before their activation (a cap is outside), float32 or the dtype of q
/// returns           h [B, T, H, V] in the dtype of v and the state after the last token: C [B, H, K, V], n [B, H, K],
///                   m [B, H], float32 for half-precision storage. It continues the sequence in the next call.
///
/// Dtype     float32, bfloat16 (gates, state and all arithmetic in float32); others through the blocked form.
/// Gradient  of q, k, v, i, f and the given state, from h and the returned state, m included; once.
/// Memory    O(T) and, backward, one state for each chunk of the heads in progress.
/// Time      O(K V + chunk (K + V)) per token and head; one token reads, decays, adds to and writes the state.
/// Bits      the same for any number of threads.
/// Throws    c10::ValueError when shapes, dtypes or devices disagree; the text names the argument and both values.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> mlstm(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK,
                                                                 const at::Tensor& v_BTHV, const at::Tensor& i_BTH,
                                                                 const at::Tensor& f_BTH,
                                                                 const MlstmOptions& options = {});

/// One token of one head, for decoding: plain memory, no tensors, no threads. Only the scratch memory of the calling
/// thread is allocated, once.
struct MlstmToken {
  int64_t key_dim = 0, value_dim = 0;
  float *q = nullptr, *k = nullptr, *v = nullptr;  // [K], [K], [V]
  float i = 0, f = 0;
  float *C = nullptr, *n = nullptr, *m = nullptr;  // state of the head, which advances
  float* h = nullptr;                              // [V]
};
void mlstm_token(const MlstmToken& token);

namespace reference {

/// The definition, token by token, in plain torch: any dtype and device.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> mlstm(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK,
                                                                 const at::Tensor& v_BTHV, const at::Tensor& i_BTH,
                                                                 const at::Tensor& f_BTH,
                                                                 const MlstmOptions& options = {});

/// The same for all tokens at once, O(T^2) memory: README.md, Eq. (5)-(7).
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> mlstm_parallel(
    const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV, const at::Tensor& i_BTH,
    const at::Tensor& f_BTH, const MlstmOptions& options = {});

}  // namespace reference
}  // namespace tamis::ops
