#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "tamis/ops/screening/screening.h"

namespace tamis::ops {

/// Whether the CUDA kernels (screening_cuda_kernel.cu) can do it: float32, bfloat16 and float16, K at most 32, V at
/// most 128, B and H at most 65,535; and whether they compile for this device. The operator uses them with the
/// environment variable TAMIS_CUDA_KERNELS=1.
bool screening_has_cuda(const at::Tensor& q, const at::Tensor& v, const ScreeningOptions& options);

/// The results and gradients of screening_blocked and screening_backward_blocked. Nothing is read from the device.
///
/// Similarities are products of tensor cores with float32 sums, of unit rows whose components are sums of two bfloat16
/// numbers (16 bits). For float32 inputs, for gradients and for heads with r below 1/32 they only exclude pairs, and
/// those that are left get a float32 product. The values of accepted keys alone are read and added, in a fixed order,
/// so the bits do not depend on chance. A similarity that is NaN counts as accepted: NaN in a query, a key or a scalar
/// shows in what sees it.
///
/// Memory: 8 K bytes a row of q and k, K rounded up to 16; gradients are float32 until they are those of rows. O(T).
at::Tensor screening_cuda(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& s_w,
                          const at::Tensor& s_r, const ScreeningOptions& options);

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> screening_backward_cuda(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& s_w,
    const at::Tensor& s_r, const ScreeningOptions& options);

/// The source of the kernels.
const char* screening_cuda_source();

}  // namespace tamis::ops
