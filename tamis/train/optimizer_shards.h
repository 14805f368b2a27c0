#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
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

/// The moments of some pieces of the parameters, to be filled from a checkpoint.
struct MomentsOfPieces {
  std::span<const Piece> pieces;
  std::span<const at::Tensor> moments;  // of each piece

  /// Copies the elements that they share with a piece, whose moments `read` gives if there are any.
  void copy_from(const Piece& stored, const std::function<at::Tensor()>& read) const;
};

/// Fills moments with the pieces in `shards` named "PREFIX.PARAMETER[begin:end]", one of which is in memory at a time;
/// unless `all`, a parameter may be absent. Throws ExitCode::kInput when a piece of any parameter is missing or lies
/// outside of it, in all processes alike.
void read_shards(std::span<const std::filesystem::path> shards, const std::string& prefix,
                 std::span<const models::Parameter> parameters, const MomentsOfPieces& into, bool all);

}  // namespace tamis::train
