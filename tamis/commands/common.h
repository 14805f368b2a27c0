#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "tamis/commands/options.h"

namespace tamis::commands {

/// Sets the number of threads and returns the device. Throws ExitCode::kUsage on a device that this machine or build
/// lacks.
at::Device start(const RunOptions& options);

/// What `--set-model` changes; throws ExitCode::kUsage.
nlohmann::json model_changes(const RunOptions& options);

/// One line of JSON; text in it that is not UTF-8 becomes U+FFFD.
std::string to_line(const nlohmann::json& json);

/// A progress line on stderr with the share done and the time left, for the `Progress` of a long evaluation. It is
/// cleared when the last copy goes.
std::function<void(double done, double total)> progress_with_eta(const std::string& what);

}  // namespace tamis::commands
