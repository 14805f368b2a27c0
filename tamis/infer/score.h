#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "tamis/infer/options.h"
#include "tamis/models/model.h"

namespace tamis::infer {

/// ln p(ids[t] | ids[0..t)) for every t; the first is NaN, as nothing precedes it. No T x N tensor; logits and their
/// logarithm of a sum of exponentials in float64. Throws ExitCode::kInput when there are no ids or one is outside the
/// vocabulary, ExitCode::kRuntime when a probability is not finite.
std::vector<double> score(const models::Model& model, std::span<const int64_t> ids, const ScoreOptions& options = {});

/// ln p(targets[b][t] | tokens[b][0..t]), float64 [B, T] on the CPU, of sequences of equal length.
at::Tensor target_logprobs(const models::Model& model, const at::Tensor& tokens_BT, const at::Tensor& targets_BT,
                           const ScoreOptions& options);

/// A file, or standard input for "-", with one JSON list of token ids. Throws ExitCode::kInput when it is anything
/// else, when the list is empty or an entry is no integer in [0, vocab_size).
std::vector<int64_t> read_ids(const std::filesystem::path& file, int64_t vocab_size);

}  // namespace tamis::infer
