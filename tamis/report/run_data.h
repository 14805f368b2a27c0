#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

namespace tamis::report {

/// What a run's log.jsonl (docs/training.md) has to show. Unknown records and fields are passed over, and so is a last
/// line that is still being written.
///
///   training  {steps, tokens, seconds, mfu, memory_bytes: the latest; loss, grad_norm, lr, tokens_per_second: {x, y};
///             validation: {source: {x, y}}; tiles: {step, windows [record][layer][head], accepts}}
///   samples   [{step, prompt, text}]
///
/// Long series are thinned: of each of 1000 ranges of steps the smallest and the largest value stay, so no spike is
/// lost. Throws ExitCode::kInput when a line inside the file is not JSON.
nlohmann::json read_log(std::string_view log_jsonl, const std::filesystem::path& name);

/// The same for a run directory, with its recipe (config.toml) and run (run.json) where they exist, and
///
///   evals     {NAME: the object in eval/NAME.json}, as to_json of tamis/eval/task_eval.h or tamis/eval/loss_eval.h
nlohmann::json read_run(const std::filesystem::path& directory);

}  // namespace tamis::report
