#include "tamis/infer/decode.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "tamis/base/memory.h"
#include "tamis/infer/load.h"

namespace tamis::infer {

Decoder::Decoder(const models::Model& model, int64_t sequences, const models::ForwardOptions& options) : model_(model) {
  const at::NoGradGuard no_gradients;
  head_ND_ = model.head_weight();
  for (int64_t b = 0; b < sequences; ++b) {
    states_.push_back(model.new_state(options));
    state_pointers_.push_back(states_.back().get());
  }
}

void Decoder::read(const at::Tensor& tokens_BT, int64_t chunk_tokens,
                   const std::function<void(const at::Tensor& x_BCD, int64_t first)>& visit) {
  const at::NoGradGuard no_gradients;
  const at::Tensor tokens = tokens_BT.to(head_ND_.device());
  const int64_t length = tokens.size(1);
  const int64_t chunk = std::max<int64_t>(1, chunk_tokens / std::max<int64_t>(1, tokens.size(0)));
  if (length > chunk) reserve(length);
  for (int64_t first = 0; first < length; first += chunk) {
    visit(model_.decode(tokens.narrow(1, first, std::min(chunk, length - first)).contiguous(), state_pointers_), first);
  }
}

void Decoder::reserve(int64_t tokens) {
  double bytes = 0;
  for (const auto& state : states_) bytes += static_cast<double>(state->bytes_after(tokens) - state->bytes());
  require_memory(bytes, fmt::format("the decoding state of {} x {} tokens", states_.size(), tokens),
                 "use a shorter text, or leave windows as they are");
  for (const auto& state : states_) state->reserve(tokens);
}

at::Tensor Decoder::logits_after(const at::Tensor& tokens_BT, int64_t chunk_tokens) {
  const at::NoGradGuard no_gradients;
  at::Tensor last_BD;
  read(tokens_BT, chunk_tokens, [&](const at::Tensor& x_BCD, int64_t) { last_BD = x_BCD.select(1, -1); });
  return last_BD.matmul(head_ND_.t());
}

int64_t Decoder::state_bytes() const {
  int64_t bytes = 0;
  for (const auto& state : states_) bytes += state->bytes();
  return bytes;
}

at::Tensor to_tensor(std::span<const int64_t> ids) {
  return at::tensor(at::ArrayRef<int64_t>(ids.data(), ids.size()), at::kLong).unsqueeze(0);
}

}  // namespace tamis::infer
