#include "tamis/infer/score.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tamis/base/error.h"
#include "tamis/base/input.h"
#include "tamis/base/json.h"
#include "tamis/base/memory.h"
#include "tamis/infer/decode.h"
#include "tamis/ops/linear_cross_entropy/linear_cross_entropy.h"

namespace tamis::infer {

at::Tensor target_logprobs(const models::Model& model, const at::Tensor& tokens_BT, const at::Tensor& targets_BT,
                           const ScoreOptions& options) {
  const at::NoGradGuard no_gradients;
  const at::Tensor head_ND = model.head_weight().to(at::kDouble);
  const at::Tensor targets = targets_BT.to(head_ND.device());
  at::Tensor logprobs_BT = at::empty(tokens_BT.sizes(), at::kDouble);
  Decoder decoder(model, tokens_BT.size(0), forward_options(options.weights, options.expand_windows));
  decoder.read(tokens_BT, options.chunk_tokens, [&](const at::Tensor& x_BCD, int64_t first) {
    const int64_t chunk = x_BCD.size(1);
    const at::Tensor loss_BC = ops::linear_cross_entropy(x_BCD.to(at::kDouble), head_ND,
                                                         targets.narrow(1, first, chunk), {.reduction = "none"});
    logprobs_BT.narrow(1, first, chunk).copy_(loss_BC.neg());
  });
  return logprobs_BT;
}

std::vector<double> score(const models::Model& model, std::span<const int64_t> ids, const ScoreOptions& options) {
  if (ids.empty()) fail(ExitCode::kInput, "score: there are no tokens; expected at least one");
  for (size_t t = 0; t < ids.size(); ++t) {
    if (ids[t] < 0 || ids[t] >= model.vocab_size()) {
      fail(ExitCode::kInput, "score: token {} is {}, but the model's vocabulary is 0..{}", t, ids[t],
           model.vocab_size() - 1);
    }
  }
  std::vector<double> logprobs(ids.size(), std::numeric_limits<double>::quiet_NaN());
  if (ids.size() == 1) return logprobs;
  constexpr double kBytesPerToken = 24;  // int64 id, and float64 log-probability in a tensor and in the result
  require_memory(kBytesPerToken * static_cast<double>(ids.size()), fmt::format("scoring {} tokens", ids.size()),
                 "use a shorter text");
  const at::Tensor tokens_1T = to_tensor(ids);
  const int64_t predicted = tokens_1T.size(1) - 1;
  const at::Tensor found =
      target_logprobs(model, tokens_1T.narrow(1, 0, predicted), tokens_1T.narrow(1, 1, predicted), options);
  for (int64_t t = 0; t < predicted; ++t) {
    logprobs[t + 1] = found.const_data_ptr<double>()[t];
    if (!std::isfinite(logprobs[t + 1])) {
      fail(ExitCode::kRuntime, "score: the log-probability of token {} is {}; the model has diverged", t + 1,
           logprobs[t + 1]);
    }
  }
  return logprobs;
}

std::vector<int64_t> read_ids(const std::filesystem::path& file, int64_t vocab_size) {
  std::vector<int64_t> ids;
  parse_json_list(read_input(file), input_name(file), /*most_levels=*/2, [&](const nlohmann::json& entry) {
    const size_t index = ids.size();
    if (!entry.is_number_integer()) {
      fail(ExitCode::kInput, "{}: entry {} is of type {}; expected an integer", input_name(file), index,
           entry.type_name());
    }
    const bool huge = entry.is_number_unsigned() && entry.get<uint64_t>() >= static_cast<uint64_t>(vocab_size);
    if (huge || entry.get<int64_t>() < 0) {
      fail(ExitCode::kInput, "{}: entry {} is {}, but the model's vocabulary is 0..{}", input_name(file), index,
           entry.dump(), vocab_size - 1);
    }
    ids.push_back(entry.get<int64_t>());
  });
  if (ids.empty()) fail(ExitCode::kInput, "{}: the list of token ids is empty; expected at least one", file.string());
  return ids;
}

}  // namespace tamis::infer
