#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tamis/models/model.h"

namespace tamis::models {

/// How a model's parameters come to be.
struct Start {
  std::optional<uint64_t> seed;  // unset: not written yet, to be filled from a checkpoint
  at::Device device = at::kCPU;  // at::kMeta: shapes without memory
};

/// One line of the registry: everything that depends on model_type.
struct Architecture {
  std::string name;                                          // model_type
  nlohmann::json (*complete)(const nlohmann::json& config);  // as complete_config
  std::unique_ptr<Model> (*make)(const nlohmann::json& complete_config, const Start& start);
};

/// The architecture that `config` names in model_type. Throws ExitCode::kUsage.
const Architecture& find_architecture(const nlohmann::json& config);

}  // namespace tamis::models
