#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "tamis/infer/options.h"
#include "tamis/models/model.h"

namespace tamis::infer {

/// ln p(ids[t] | earlier ids of its document) for every t; NaN for the first token of a document, which nothing
/// precedes. Logits and log-sum-exp are float64, without a T x N tensor. Throws ExitCode::kInput when there are no ids
/// or one is outside the vocabulary, ExitCode::kRuntime when a log-probability is not finite.
std::vector<double> score(const models::Model& model, std::span<const int64_t> ids, const ScoreOptions& options = {});

/// ln p(targets[b][t] | tokens[b][0..t]) for sequences of equal length, float64 [B, T] on the CPU.
at::Tensor target_logprobs(const models::Model& model, const at::Tensor& tokens_BT, const at::Tensor& targets_BT,
                           const ScoreOptions& options);

/// Reads a JSON list of token ids from a file, or from standard input for "-". Throws ExitCode::kInput when the content
/// is anything else, when the list is empty, or when an entry is not an integer in [0, vocab_size).
std::vector<int64_t> read_ids(const std::filesystem::path& file, int64_t vocab_size);

}  // namespace tamis::infer
