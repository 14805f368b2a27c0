#include "tamis/infer/score.h"

#include <ATen/ATen.h>

#include <algorithm>
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

namespace {

/// Log-probabilities of targets, with weights that are prepared once.
class Scorer {
 public:
  Scorer(const models::Model& model, int64_t sequences, const ScoreOptions& options)
      : head_ND_(model.head_weight().detach().to(at::kDouble)),
        soft_cap_(model.logit_soft_cap()),
        decoder_(model, sequences, forward_options(options.weights, options.expand_windows)),
        chunk_tokens_(options.chunk_tokens) {}

  /// [B, T], float64: of sequences of which nothing has been read yet.
  at::Tensor logprobs(const at::Tensor& tokens_BT, const at::Tensor& targets_BT) {
    const at::NoGradGuard no_gradients;
    if (read_) decoder_.reset();
    read_ = true;
    const at::Tensor targets = targets_BT.to(head_ND_.device());
    at::Tensor logprobs_BT = at::empty(tokens_BT.sizes(), at::kDouble);
    decoder_.read(tokens_BT, chunk_tokens_, [&](const at::Tensor& x_BCD, int64_t first) {
      const int64_t chunk = x_BCD.size(1);
      const at::Tensor loss_BC =
          ops::linear_cross_entropy(x_BCD.to(at::kDouble), head_ND_, targets.narrow(1, first, chunk),
                                    {.reduction = "none", .soft_cap = soft_cap_});
      logprobs_BT.narrow(1, first, chunk).copy_(loss_BC.neg());
    });
    return logprobs_BT;
  }

 private:
  at::Tensor head_ND_;
  std::optional<double> soft_cap_;
  Decoder decoder_;
  int64_t chunk_tokens_;
  bool read_ = false;
};

/// The number of tokens of the document that begins at ids[first].
size_t document_length(std::span<const int64_t> ids, size_t first, std::optional<int64_t> document_end) {
  if (!document_end) return ids.size() - first;
  const auto end = std::find(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end(), *document_end);
  return static_cast<size_t>(end - ids.begin()) + (end == ids.end() ? 0 : 1) - first;
}

}  // namespace

at::Tensor target_logprobs(const models::Model& model, const at::Tensor& tokens_BT, const at::Tensor& targets_BT,
                           const ScoreOptions& options) {
  return Scorer(model, tokens_BT.size(0), options).logprobs(tokens_BT, targets_BT);
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
  Scorer scorer(model, 1, options);
  for (size_t first = 0; first < ids.size();) {
    const size_t length = document_length(ids, first, options.document_end);
    const at::Tensor tokens_1T = to_tensor(ids.subspan(first, length));
    const auto predicted = static_cast<int64_t>(length) - 1;
    first += 1;  // of the first predicted token
    if (predicted == 0) continue;
    const at::Tensor found = scorer.logprobs(tokens_1T.narrow(1, 0, predicted), tokens_1T.narrow(1, 1, predicted));
    for (int64_t t = 0; t < predicted; ++t, ++first) {
      logprobs[first] = found.const_data_ptr<double>()[t];
      if (!std::isfinite(logprobs[first])) {
        fail(ExitCode::kRuntime, "score: the log-probability of token {} is {}; the model has diverged", first,
             logprobs[first]);
      }
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
