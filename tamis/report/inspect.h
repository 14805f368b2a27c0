#pragma once

#include <c10/core/Device.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tamis/report/options.h"

namespace tamis::report {

/// What a checkpoint is: the data of a page (tamis/report/page.h) with title, model, tiles and, with a text, relevance.
/// Writes the picture of the maps that `options.map` describes, if it names a file. Throws ExitCode::kInput when the
/// checkpoint or the text cannot be used.
nlohmann::json inspect(const InspectOptions& options, at::Device device = at::kCPU);

/// The same, without a checkpoint, of a configuration that complete_config accepts: title and model.
nlohmann::json inspect_config(const nlohmann::json& config);

/// What `inspect` found, for a terminal of `columns`: parameters, then layers x heads tables of windows, acceptance
/// widths and, with a text, the share of accepted keys, or over how many keys the weights spread.
std::string inspection_text(const nlohmann::json& inspection, int columns);

/// What `inspect` found, for programs: parameters, parameters_without_embedding, parts, config, of recipes memory,
/// tiles [{layer, head, window, accept, and, with a text, mechanism, selects, nonzero, keys}].
nlohmann::json inspection_json(const nlohmann::json& inspection);

}  // namespace tamis::report
