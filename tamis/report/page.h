#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tamis::report {

/// One HTML file that shows `data`: web/report.html with its style sheet, its scripts and Plotly written into it. It
/// loads nothing from anywhere (its content security policy forbids it). Every part but `version`, `title` and `model`
/// may be missing:
///
///   version, title    text
///   model             as describe_model (tamis/report/model_data.h)
///   tiles             [{layer, head, window, accept}]; a window of null is infinite
///   training, samples as read_log (tamis/report/run_data.h)
///   abc_digits        as to_json of tamis/eval/abc_digits_eval.h
///   relevance         as describe_relevance (tamis/report/relevance_data.h)
///   recipe            text;  run  any JSON object
///
/// Text may hold anything; bytes that are not UTF-8 show as U+FFFD.
std::string make_page(const nlohmann::json& data);

}  // namespace tamis::report
