#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tamis/nn/safetensors.h"

namespace tamis::nn {

inline constexpr const char* kTensorFile = "model.safetensors";
inline constexpr const char* kTensorIndex = "model.safetensors.index.json";

/// What a model's files say of themselves: transformers reads no file without it.
inline const std::map<std::string, std::string> kTensorMetadata = {{"format", "pt"}};

/// "model-00002-of-00004.safetensors" for shard 1 of 4.
std::string tensor_shard_name(size_t shard, size_t shards);
/// True of the names of all such shards.
bool is_tensor_shard(const std::string& file);

/// True when the directory has tensors that SafetensorsSet can read.
bool has_tensors(const std::filesystem::path& directory);

/// The tensors of a model directory in Hugging Face layout: those of `model.safetensors`, or, without this file, those
/// of the shards that `model.safetensors.index.json` lists ({"weight_map": {tensor: file}}).
///
/// The shards are checked like SafetensorsFile; they lie next to the index, and every tensor is in exactly the file
/// that the index gives. Throws ExitCode::kInput with the file and the tensor.
class SafetensorsSet {
 public:
  /// Of a directory, or of a single file.
  explicit SafetensorsSet(const std::filesystem::path& path);

  /// The name of the file or of the index, for messages.
  const std::string& name() const { return name_; }
  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& tensor) const { return file_of_.contains(tensor); }
  /// These three throw ExitCode::kInput when there is no such tensor. `tensor` makes a copy of its own.
  at::IntArrayRef shape(const std::string& tensor) const { return file(tensor).shape(tensor); }
  at::ScalarType dtype(const std::string& tensor) const { return file(tensor).dtype(tensor); }
  at::Tensor tensor(const std::string& name) const { return file(name).tensor(name); }

 private:
  void read_index(const std::filesystem::path& index);
  const SafetensorsFile& file(const std::string& tensor) const;

  std::string name_;
  std::vector<SafetensorsFile> files_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, size_t> file_of_;
};

/// Writes `model.safetensors`, or, when the tensors take more than `shard_bytes`, shards of at most this many bytes
/// (more where a single tensor is larger) and their index. One tensor is in memory at a time. Throws
/// ExitCode::kStorage.
void write_safetensors_set(const std::filesystem::path& directory, std::span<const LazyTensor> tensors,
                           int64_t shard_bytes);

/// Writes the index of shards with the names of tensor_shard_name: which tensors each of them has, and their bytes in
/// all. Throws ExitCode::kStorage.
void write_tensor_index(const std::filesystem::path& directory, std::span<const std::vector<std::string>> shards,
                        int64_t total_bytes);

}  // namespace tamis::nn
