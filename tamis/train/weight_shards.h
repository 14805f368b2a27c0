#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "tamis/models/model.h"
#include "tamis/nn/safetensors.h"
#include "tamis/train/gradient_exchange.h"

// The weights of a run with several processes: process r writes shard r, model-00002-of-00004.safetensors for the
// second of four, in the layout that nn::SafetensorsSet and Hugging Face's tools read.

namespace tamis::train {

/// The shapes of all parameters, on the meta device; they may be sharded.
std::vector<at::Tensor> shapes_of(const models::Model& model);

/// The tensors of each shard.
using WeightShards = std::vector<std::vector<nn::NamedTensor>>;

/// Cuts Model::checkpoint_tensors, in their order, into shards of about equally many bytes with whole tensors: one for
/// each process, or fewer where tensors are few or large. Shapes only, as shapes_of.
WeightShards cut_weights(const models::Model& model, int64_t processes);

/// Copies of the tensors of a shard, empty for a process without one; all processes call it. Of sharded parameters no
/// process has more than its shard and one layer, or the matrices outside of the layers, at a time.
std::vector<nn::NamedTensor> copy_weights(const models::Model& model, GradientExchange& exchange,
                                          const std::vector<nn::NamedTensor>& shard);

/// Writes the index of all shards. Throws ExitCode::kStorage.
void write_weight_index(const std::filesystem::path& directory, const WeightShards& shards);

}  // namespace tamis::train
