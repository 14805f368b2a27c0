#include "tamis/infer/decode.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "tamis/base/error.h"
#include "tamis/base/memory.h"
#include "tamis/infer/load.h"
#include "tamis/ops/linear.h"
#include "tamis/ops/parallel.h"

namespace tamis::infer {
namespace {

nn::StreamedMatrix head_matrix(const models::Model& model, const models::ForwardOptions& options) {
  const at::NoGradGuard no_gradients;
  const std::vector<models::Parameter> parameters = model.parameters();
  if (!parameters.empty()) check_weights(options, parameters.front().tensor.device());
  const at::Tensor head_ND = model.head_weight();
  return {options.int8_weights ? head_ND : head_ND.to(options.compute_dtype), options.int8_weights};
}

}  // namespace

models::ForwardOptions forward_options(WeightFormat weights, bool expand_windows) {
  return {.compute_dtype = weights == WeightFormat::kBFloat16 ? at::kBFloat16 : at::kFloat,
          .int8_weights = weights == WeightFormat::kInt8,
          .expand_windows = expand_windows};
}

void check_weights(const models::ForwardOptions& options, at::Device device) {
  if (!options.int8_weights || device.is_cpu()) return;
  fail(ExitCode::kUsage,
       "--weights int8: products with int8 weights need the CPU, but the model is on {}; use float32 or bfloat16, or "
       "--device cpu",
       device.str());
}

Decoder::Decoder(const models::Model& model, int64_t sequences, const models::ForwardOptions& options)
    : Decoder(model, head_matrix(model, options), options) {
  for (int64_t b = 0; b < sequences; ++b) add(model.new_state(options));
}

Decoder::Decoder(const models::Model& model, const nn::StreamedMatrix& head_ND, const models::ForwardOptions& options)
    : model_(model), head_ND_(head_ND), options_(options) {}

void Decoder::reset() {
  const size_t sequences = states_.size();
  states_.clear();
  state_pointers_.clear();
  for (size_t b = 0; b < sequences; ++b) add(model_.new_state(options_));
}

void Decoder::add(std::unique_ptr<models::DecodingState> state) {
  states_.push_back(std::move(state));
  state_pointers_.push_back(states_.back().get());
}

Decoder Decoder::fork() const {
  Decoder copy(model_, head_ND_, options_);
  for (const auto& state : states_) copy.add(state->fork());
  return copy;
}

void Decoder::read(const at::Tensor& tokens_BT, int64_t chunk_tokens,
                   const std::function<void(const at::Tensor& x_BCD, int64_t first)>& visit) {
  const at::NoGradGuard no_gradients;
  const int64_t length = tokens_BT.size(1);
  const int64_t chunk = std::max<int64_t>(1, chunk_tokens / std::max<int64_t>(1, tokens_BT.size(0)));
  if (length > chunk) reserve(length);
  for (int64_t first = 0; first < length; first += chunk) {
    visit(model_.decode(tokens_BT.narrow(1, first, std::min(chunk, length - first)).contiguous(), state_pointers_),
          first);
  }
}

void Decoder::reserve(int64_t tokens) {
  double bytes = 0;
  for (const auto& state : states_) bytes += static_cast<double>(state->bytes_after(tokens) - state->bytes());
  require_memory(bytes, fmt::format("the decoding state of {} x {} tokens", states_.size(), tokens),
                 "use a shorter text, or do not expand windows");
  for (const auto& state : states_) state->reserve(tokens);
}

at::Tensor Decoder::logits_after(const at::Tensor& tokens_BT, int64_t chunk_tokens) {
  const at::NoGradGuard no_gradients;
  at::Tensor last_BD;
  read(tokens_BT, chunk_tokens, [&](const at::Tensor& x_BCD, int64_t) { last_BD = x_BCD.select(1, -1); });
  return logits(last_BD);
}

at::Tensor Decoder::logits(const at::Tensor& x_RD) {
  const at::NoGradGuard no_gradients;
  at::Tensor logits_RN = products(x_RD);
  if (const auto cap = model_.logit_soft_cap()) logits_RN.div_(*cap).tanh_().mul_(*cap);
  return logits_RN;
}

at::Tensor Decoder::products(const at::Tensor& x_RD) {
  const auto rows = head_ND_.rows();
  const int64_t R = x_RD.size(0), N = model_.vocab_size(), D = model_.hidden_size();
  if (!rows || R > kernels::kMostVectors) return ops::linear(x_RD, head_ND_.dense(at::kFloat));
  const at::Tensor x = x_RD.contiguous(), logits_RN = at::empty({R, N}, at::kFloat);
  const int64_t numbers = kernels::prepared_vectors(D, R);
  if (!prepared_.defined() || prepared_.numel() < numbers) prepared_ = at::empty({numbers}, at::kFloat);
  float* prepared = prepared_.data_ptr<float>();
  kernels::prepare_vectors(rows->format, D, x.const_data_ptr<float>(), D, R, prepared);
  // One contiguous slice of rows per thread, so that each reads memory sequentially. A row's bits do not depend on the
  // slice it is in.
  const int64_t rows_worth_a_thread = std::max<int64_t>(1, 65'536 / D);
  ops::parallel_chunks(N, rows_worth_a_thread, [&](int64_t first, int64_t last) {
    kernels::multiply_rows(*rows, first, last, prepared, R, logits_RN.data_ptr<float>() + first, N);
  });
  return logits_RN;
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
