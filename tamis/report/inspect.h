#pragma once

#include <c10/core/Device.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tamis/report/options.h"

namespace tamis::report {

/// Describes a checkpoint: the data of a page (tamis/report/page.h) with title, model, heads (`tiles`) and, if there is
/// a text, relevance. Writes the picture of the relevance maps if `options.map` names a file. Throws ExitCode::kInput
/// when the checkpoint or the text cannot be used.
nlohmann::json inspect(const InspectOptions& options, at::Device device = at::kCPU);

/// Describes a configuration that complete_config accepts, without a checkpoint: title and model.
nlohmann::json inspect_config(const nlohmann::json& config);

/// The result of inspect() for a terminal of `columns` columns: parameters, then layers x heads tables of windows,
/// acceptance widths and, if there is a text, the accepted share or the effective number of keys.
std::string inspection_text(const nlohmann::json& inspection, int columns);

/// The result of inspect() as JSON: parameters, parameters_without_embedding, parts, config; for recipes memory; tiles
/// [{layer, head, window, accept; with a text: mechanism, selects, nonzero, keys}].
nlohmann::json inspection_json(const nlohmann::json& inspection);

}  // namespace tamis::report
