#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tamis/study/table.h"

namespace tamis::study {

/// The page of a study, from the content of study.json and its rows: claims with verdicts, what was run, figures,
/// tables, cost, assumptions, recipe. `figures` is the folder of the figures as links name it.
std::string to_markdown(const nlohmann::json& study, const Rows& rows, const std::string& figures);

/// The same as one HTML file, with the SVG files of `figures` inside.
std::string to_html(const nlohmann::json& study, const Rows& rows, const std::filesystem::path& figures);

/// What was measured for a claim, with its interval: `0.123 [-0.015, 0.261]`.
std::string measured(const nlohmann::json& claim);

}  // namespace tamis::study
