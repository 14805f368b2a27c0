#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

// Checks of operators' arguments. Each throws c10::ValueError, whose text names the operator `op`, the argument, what
// was expected and what came. Sizes may be symbolic.

namespace tamis::ops {

/// x has the sizes `expected`; `meaning` says what they are.
void check_shape(const char* op, const char* name, const at::Tensor& x, at::SymIntArrayRef expected,
                 const char* meaning);

/// x is on the device of q.
void check_device(const char* op, const char* name, const at::Tensor& x, const at::Tensor& q);

/// x has the device and the dtype of q.
void check_like(const char* op, const char* name, const at::Tensor& x, const at::Tensor& q);

/// q_BTHK, k_BTHK and v_BTHV of an attention, queries of the last T_q of T_k positions; K is at least `least_key_dim`.
void check_queries_keys_values(const char* op, const at::Tensor& q_BTHK, const at::Tensor& k_BTHK,
                               const at::Tensor& v_BTHV, int64_t least_key_dim = 1);

/// x_H is float32 or float64 and holds one number for each head of q_BTHK.
void check_per_head(const char* op, const char* name, const at::Tensor& x_H, const at::Tensor& q_BTHK);

/// document_BT holds integers for B of x and T = `positions`, on the device of x; `meaning` says what B and T are.
void check_document(const char* op, const at::Tensor& document_BT, const at::Tensor& x_BTHD,
                    const c10::SymInt& positions, const char* meaning);

}  // namespace tamis::ops
