#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tamis/nn/safetensors_set.h"

namespace tamis::models {

/// The tensors of a checkpoint's safetensors files under the names that this version gives them.
///
/// Until November 2026 a Transformer or SWAX stored the projections of a screening layer as one tensor,
/// `qkvg_proj.weight`. Here it appears as `q_proj.weight`, `k_proj.weight`, `v_proj.weight` and `g_proj.weight`.
class StoredTensors {
 public:
  /// Of a directory or a single file, as nn::SafetensorsSet, with its errors.
  StoredTensors(const std::filesystem::path& path, const nlohmann::json& complete_config);

  /// For messages.
  const std::string& file_name() const { return file_.name(); }
  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const;
  std::vector<int64_t> shape(const std::string& name) const;
  at::ScalarType dtype(const std::string& name) const;
  at::Tensor tensor(const std::string& name) const;

 private:
  /// Rows of a stored tensor.
  struct Rows {
    std::string stored;
    int64_t first, count;
  };
  void split(const std::string& stored, const std::vector<std::pair<const char*, int64_t>>& parts);

  nn::SafetensorsSet file_;
  std::vector<std::string> names_;
  std::map<std::string, Rows> parts_;
};

}  // namespace tamis::models
