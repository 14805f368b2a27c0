#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tamis::nn {

/// A tensor as a checkpoint stores it.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// A tensor that is made when it is needed, so that a model larger than the memory can be copied.
struct LazyTensor {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  std::function<at::Tensor()> make;  // a tensor of this dtype and shape

  /// Of its data.
  int64_t bytes() const;
};

/// A safetensors file, mapped into memory and trusted in nothing: the constructor checks the header's size and JSON,
/// every dtype, shape and offset, that tensors neither overlap nor leave holes nor reach past the end, and that no name
/// comes twice. Throws ExitCode::kInput with the file, the tensor, what was expected and what came.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::vector<std::string>& names() const;  // in the order of their data
  bool contains(const std::string& name) const;
  /// These three throw ExitCode::kInput when the file has no such tensor. `tensor` makes a copy of its own.
  at::IntArrayRef shape(const std::string& name) const;
  at::ScalarType dtype(const std::string& name) const;
  at::Tensor tensor(const std::string& name) const;
  const std::map<std::string, std::string>& metadata() const;

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

/// Writes the tensors (views are made contiguous one at a time) and fsyncs; `path` should lie in a directory that
/// write_directory_atomic is filling. Throws ExitCode::kStorage.
void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});
/// The same, with one of the tensors in memory at a time.
void write_safetensors(const std::filesystem::path& path, std::span<const LazyTensor> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace tamis::nn
