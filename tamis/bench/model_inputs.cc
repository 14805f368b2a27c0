#include "tamis/bench/model_inputs.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace tamis::bench {

std::unique_ptr<models::Model> make_model(int64_t psi, int64_t vocab, const std::string& windows) {
  auto model = models::make_model(models::complete_config({{"psi", psi}, {"vocab_size", vocab}}), /*seed=*/1);
  if (windows == "initial") return model;
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : model->parameters()) {
    if (name.ends_with(".s_w")) tensor.copy_(window_scalars(windows, tensor.numel()));
  }
  return model;
}

at::Tensor window_scalars(const std::string& windows, int64_t heads) {
  // exp(95) is beyond float32, and longer than any text.
  return windows == "infinite" ? at::full({heads}, 95.0) : at::linspace(0, std::log(256.0), heads);
}

at::Tensor random_tokens(int64_t B, int64_t T, int64_t vocab) {
  return at::randint(vocab, {B, T}, at::kLong);
}

CountedWeights count_weights(const models::Model& model) {
  CountedWeights result;
  for (const auto& [name, tensor] : model.parameters()) {
    if (tensor.dim() == 2) result.layers += static_cast<double>(tensor.numel());
  }
  result.head = static_cast<double>(model.vocab_size() * model.hidden_size());
  result.layers -= result.head;  // tied: the embedding's products are the head's
  return result;
}

int64_t check_tokens(const std::vector<int64_t>& lengths) {
  return std::min<int64_t>(320, *std::max_element(lengths.begin(), lengths.end()));
}

}  // namespace tamis::bench
