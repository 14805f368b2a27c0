#include "tamis/nn/streamed_matrix.h"

#include <ATen/ATen.h>

namespace tamis::nn {
namespace {

constexpr double kLargest = 127;  // -128 is left out: the scale would be uneven

}  // namespace

StreamedMatrix::StreamedMatrix(const at::Tensor& weight_RC, bool int8) {
  const at::Tensor weight = weight_RC.detach().contiguous();
  if (!int8) {
    weight_RC_ = weight;
    return;
  }
  const at::Tensor exact = weight.to(at::kFloat);
  scale_R_ = exact.abs().amax(1).div_(kLargest);
  const at::Tensor inverse = at::where(scale_R_ > 0, scale_R_.reciprocal(), 0).unsqueeze(1);
  weight_RC_ = (exact * inverse).round_().clamp_(-kLargest, kLargest).to(at::kChar);
}

at::Tensor StreamedMatrix::dense(at::ScalarType dtype) const {
  if (!scale_R_.defined()) return weight_RC_.to(dtype);
  return weight_RC_.to(at::kFloat).mul_(scale_R_.unsqueeze(1)).to(dtype);
}

std::optional<kernels::WeightRows> StreamedMatrix::rows() const {
  kernels::WeightRows rows = {weight_RC_.const_data_ptr(), nullptr, weight_RC_.size(1), {}};
  if (!weight_RC_.is_cpu()) return std::nullopt;
  switch (weight_RC_.scalar_type()) {
    case at::kFloat:
      rows.format = kernels::WeightFormat::kFloat32;
      return rows;
    case at::kBFloat16:
      rows.format = kernels::WeightFormat::kBFloat16;
      return rows;
    case at::kChar:
      rows.format = kernels::WeightFormat::kInt8;
      rows.scale = scale_R_.const_data_ptr<float>();
      return rows;
    default:
      return std::nullopt;
  }
}

int64_t StreamedMatrix::bytes() const {
  return static_cast<int64_t>(weight_RC_.nbytes() + (scale_R_.defined() ? scale_R_.nbytes() : 0));
}

}  // namespace tamis::nn
