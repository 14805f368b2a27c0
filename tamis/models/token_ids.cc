#include "tamis/models/token_ids.h"

#include <ATen/ATen.h>

#include "tamis/base/error.h"

namespace tamis::models {

void check_token_ids(const at::Tensor& tokens, int64_t vocab_size) {
  if (tokens.numel() == 0) return;
  const auto [least, most] = at::aminmax(tokens);
  if (least.item<int64_t>() < 0 || most.item<int64_t>() >= vocab_size) {
    fail(ExitCode::kInput, "model: token ids must lie in [0, {}), but range from {} to {}; is this its tokenizer?",
         vocab_size, least.item<int64_t>(), most.item<int64_t>());
  }
}

}  // namespace tamis::models
