#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

namespace tamis::report {

/// The series and samples of a run's log.jsonl (docs/training.md). Ignores unknown records and fields, and an
/// incomplete last line.
///
///   training  {steps, tokens, seconds, mfu, memory_bytes: latest values;
///             loss, grad_norm, lr, tokens_per_second: {x, y}; grad_norms: {group: {x, y}};
///             validation: {source: {x, y}}; tiles: {step, windows [record][layer][head], accepts}}
///   samples   [{step, prompt, text}]
///
/// Long series are thinned to the smallest and the largest value of each of 1,000 ranges of steps (grad_norms: 200),
/// which keeps every spike. Throws ExitCode::kInput when a complete line is not a JSON object.
nlohmann::json read_log(std::string_view log_jsonl, const std::filesystem::path& name);

/// The same for a run directory, with `recipe` (config.toml) and `run` (run.json) if they exist, and
///
///   evals     {NAME: the object in eval/NAME.json}, as to_json of tamis/eval/task_eval.h or tamis/eval/loss_eval.h
nlohmann::json read_run(const std::filesystem::path& directory);

}  // namespace tamis::report
