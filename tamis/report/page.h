#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tamis::report {

/// A self-contained HTML file that shows `data`: the template from web/ with its style sheet, scripts and Plotly
/// inlined. It loads no other files; its content security policy forbids that. Strings may contain any bytes; invalid
/// UTF-8 is shown as U+FFFD.
///
/// "report.html" shows a run or a model. All parts except `version`, `title` and `model` are optional:
///
///   version, title    text
///   model             as describe_model (tamis/report/model_data.h)
///   tiles             [{layer, head, window, accept}]; a window of null is infinite
///   training, samples as read_log (tamis/report/run_data.h)
///   evals             as read_run
///   relevance         as to_json of tamis/report/relevance_data.h
///   recipe            text;  run, settings  any JSON objects
///   others            runs to compare with: [{title, model, training, samples, evals, settings}]
std::string make_page(std::string_view template_name, const nlohmann::json& data);

}  // namespace tamis::report
