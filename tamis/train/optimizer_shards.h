#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tamis/nn/safetensors.h"
#include "tamis/train/gradient_exchange.h"
#include "tamis/train/optimizer.h"

// The optimizer's moments of a run with several processes: each writes those of its pieces to
// optimizer-00002-of-00004.safetensors, as exp_avg.PARAMETER[begin:end] and exp_avg_sq.PARAMETER[begin:end]. Any number
// of processes can read them.

namespace tamis::train {

/// "optimizer-00002-of-00004.safetensors" for rank 1.
std::string optimizer_shard_name(int64_t rank, int64_t size);

/// The shards in a checkpoint, in order; empty when there are none. Throws ExitCode::kInput when some are missing.
std::vector<std::filesystem::path> optimizer_shards(const std::filesystem::path& checkpoint);

/// Copies of the moments of `optimizer`, whose parameters are pieces, on the CPU.
std::vector<nn::NamedTensor> copy_shard(const AdamW& optimizer);

/// Fills `moments` of whole parameters with the pieces in `shards` named "PREFIX.PARAMETER[begin:end]"; unless `all`, a
/// parameter may be absent. Throws
/// ExitCode::kInput when a piece is missing or lies outside its parameter.
void read_shards(std::span<const std::filesystem::path> shards, const std::string& prefix,
                 std::span<const models::Parameter> parameters, std::span<const at::Tensor> moments, bool all);

}  // namespace tamis::train
