#include "tamis/nn/safetensors_set.h"

#include <ATen/ATen.h>

#include <map>
#include <nlohmann/json.hpp>
#include <regex>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"

namespace tamis::nn {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kMostShards = 10'000;

/// A name in the directory itself: no path leads out of it.
bool is_plain_name(const std::string& name) {
  return name.ends_with(".safetensors") && !name.starts_with('.') && name.find('/') == name.npos &&
         name.find('\0') == name.npos;
}

}  // namespace

std::string tensor_shard_name(size_t shard, size_t shards) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
}

bool is_tensor_shard(const std::string& file) {
  static const std::regex kName(R"(model-\d{5,}-of-\d{5,}\.safetensors)");
  return std::regex_match(file, kName);
}

bool has_tensors(const fs::path& directory) {
  return fs::is_regular_file(directory / kTensorFile) || fs::is_regular_file(directory / kTensorIndex);
}

SafetensorsSet::SafetensorsSet(const fs::path& path) {
  const bool directory = fs::is_directory(path);
  if (directory && !fs::exists(path / kTensorFile) && fs::exists(path / kTensorIndex)) {
    name_ = kTensorIndex;
    read_index(path / kTensorIndex);
    return;
  }
  const fs::path file = directory ? path / kTensorFile : path;
  name_ = file.filename().string();
  files_.emplace_back(file);
  names_ = files_[0].names();
  for (const std::string& tensor : names_) file_of_.emplace(tensor, 0);
}

void SafetensorsSet::read_index(const fs::path& index) {
  const json content = read_json(index, /*most_levels=*/3);
  const json map = content.is_object() ? content.value("weight_map", json()) : json();
  if (!map.is_object()) {
    fail(ExitCode::kInput, "{}: expected an object with \"weight_map\", the file of each tensor", index.string());
  }
  std::map<std::string, size_t> opened;
  for (const auto& [tensor, value] : map.items()) {
    const std::string shard = value.is_string() ? value.get<std::string>() : "";
    if (!is_plain_name(shard)) {
      fail(ExitCode::kInput, "{}: the file of {} must be a name like model-00001-of-00002.safetensors, but is {}",
           index.string(), quoted_name(tensor), shown(value));
    }
    const auto [found, first] = opened.emplace(shard, files_.size());
    if (first) {
      if (files_.size() == kMostShards) {
        fail(ExitCode::kInput, "{}: expected at most {} files, but it lists more", index.string(), kMostShards);
      }
      files_.emplace_back(index.parent_path() / shard);
    }
    if (!files_[found->second].contains(tensor)) {
      fail(ExitCode::kInput, "{}: {} has no tensor {}, which the index expects there", index.string(), shard,
           quoted_name(tensor));
    }
    names_.push_back(tensor);
    file_of_.emplace(tensor, found->second);
  }
  for (const auto& [shard, number] : opened) {
    for (const std::string& tensor : files_[number].names()) {
      const auto known = file_of_.find(tensor);
      if (known != file_of_.end() && known->second == number) continue;
      fail(ExitCode::kInput, "{}: {} holds {}, which the index does not expect there", index.string(), shard,
           quoted_name(tensor));
    }
  }
}

const SafetensorsFile& SafetensorsSet::file(const std::string& tensor) const {
  const auto found = file_of_.find(tensor);
  if (found == file_of_.end()) fail(ExitCode::kInput, "{}: has no tensor {}", name_, quoted_name(tensor));
  return files_[found->second];
}

void write_safetensors_set(const fs::path& directory, std::span<const LazyTensor> tensors, int64_t shard_bytes) {
  std::vector<std::vector<LazyTensor>> shards(1);
  int64_t total = 0, filled = 0;
  for (const LazyTensor& tensor : tensors) {
    const int64_t bytes = tensor.bytes();
    if (filled > 0 && filled + bytes > shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(tensor);
    filled += bytes;
    total += bytes;
  }
  if (shards.size() == 1) {
    write_safetensors(directory / kTensorFile, tensors, kTensorMetadata);
    return;
  }
  std::vector<std::vector<std::string>> names(shards.size());
  for (size_t s = 0; s < shards.size(); ++s) {
    write_safetensors(directory / tensor_shard_name(s, shards.size()), shards[s], kTensorMetadata);
    for (const LazyTensor& tensor : shards[s]) names[s].push_back(tensor.name);
  }
  write_tensor_index(directory, names, total);
}

void write_tensor_index(const fs::path& directory, std::span<const std::vector<std::string>> shards,
                        int64_t total_bytes) {
  json map = json::object();
  for (size_t s = 0; s < shards.size(); ++s) {
    for (const std::string& tensor : shards[s]) map[tensor] = tensor_shard_name(s, shards.size());
  }
  write_file(directory / kTensorIndex,
             json{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", map}}.dump(2) + "\n");
}

}  // namespace tamis::nn
