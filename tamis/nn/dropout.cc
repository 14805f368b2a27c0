#include "tamis/nn/dropout.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "tamis/base/random.h"

namespace tamis::nn {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr double kSteps = 0x1.0p16;  // an element takes 16 bits of a random number

/// m / (1 - share), float32.
Tensor factors(at::IntArrayRef shape, const Dropout& dropout) {
  Tensor result = at::empty(shape, at::kFloat);
  const int64_t T = shape[1], D = shape[2];
  const auto dropped = static_cast<uint64_t>(std::lround(dropout.share * kSteps));
  const auto factor = static_cast<float>(kSteps / (kSteps - static_cast<double>(dropped)));
  float* const out = result.mutable_data_ptr<float>();
  at::parallel_for(0, shape[0] * T, 16, [&](int64_t begin, int64_t end) {
    constexpr uint64_t kStream = 0x64726f706f7574;  // "dropout": a stream separate from those of weights and data
    for (int64_t token = begin; token < end; ++token) {
      Random random({dropout.seed, kStream, static_cast<uint64_t>(dropout.step), static_cast<uint64_t>(dropout.place),
                     static_cast<uint64_t>(dropout.first_row + token / T),
                     static_cast<uint64_t>(dropout.first_token + token % T)});
      uint64_t bits = 0;
      for (int64_t d = 0; d < D; ++d, bits >>= 16) {
        if (d % 4 == 0) bits = random.next();
        out[token * D + d] = (bits & 0xffff) < dropped ? 0.0F : factor;
      }
    }
  });
  return result;
}

struct DropoutFunction : torch::autograd::Function<DropoutFunction> {
  static Tensor product(const Tensor& x, const Dropout& dropout) {
    return (x * factors(x.sizes(), dropout).to(x.device())).to(x.scalar_type());
  }

  static Tensor forward(AutogradContext* ctx, const Tensor& x_BTD, const Dropout& dropout) {
    ctx->saved_data["share"] = dropout.share;
    ctx->saved_data["key"] = std::vector<int64_t>{static_cast<int64_t>(dropout.seed), dropout.step, dropout.first_row,
                                                  dropout.first_token, dropout.place};
    return product(x_BTD, dropout);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const std::vector<int64_t> key = ctx->saved_data["key"].toIntVector();
    const Dropout dropout{.share = ctx->saved_data["share"].toDouble(),
                          .seed = static_cast<uint64_t>(key[0]),
                          .step = key[1],
                          .first_row = key[2],
                          .first_token = key[3],
                          .place = key[4]};
    return {product(grads[0], dropout), {}};
  }
};

}  // namespace

Tensor dropout(const Tensor& x_BTD, const Dropout& dropout) {
  TORCH_INTERNAL_ASSERT(x_BTD.dim() == 3 && dropout.share >= 0 && dropout.share < 1);
  return DropoutFunction::apply(x_BTD, dropout);
}

}  // namespace tamis::nn
