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
///
/// "shootout.html" compares mixers. All parts except `version`, `title` and the mixers' names are optional, because
/// runs may be missing, and every number may be null (not finite or not measured):
///
///   version, title    text
///   done, jobs        number of finished trainings, and of all
///   train             {length, steps, batch_tokens, tokens}, the same for every mixer
///   task_lengths      {TASK: its training length in tokens}
///   chance            {score: {TASK: score of random guessing}, loss: {SOURCE: its loss}}, if answers have few choices
///   lr_grid, seeds    lists of numbers
///   recipe            text;  machine  any JSON object
///   mixers            [{name, model_type, config, parameters, parameters_without_embedding, chosen_lr, lr_edge,
///                     search, runs, flops_per_token, state_bytes, state_bytes_per_token, summary}], in page order:
///     lr_edge         "lowest" or "highest" if the chosen rate is at that end of the grid, else null
///     search          [{lr, loss, status, steps}], one per rate; status is done, diverged or missing
///     runs            [{seed, lr, status, seconds, tokens_per_second, threads, validation, by_position, curve,
///                     tasks}], one per seed:
///       validation    {SOURCE: nats per token}
///       by_position   {SOURCE: [{first, last, tokens, loss}]}, as to_json of tamis/eval/position_bins.h
///       curve         {tokens: [..], loss: [..]}
///       tasks         {TASK: [{length, instances, score, exact_match, wilson_95: [low, high]}]}; scores in [0, 1]
///     flops_per_token [{length, flops}];  state_bytes  [{length, bytes}]; lengths ascend
///     summary         {validation: {SOURCE: spread}, tasks: {TASK: [{length, ..spread}]}, tokens_per_second: spread}
///                     over the finished runs. spread is {mean, sd, n, interval_95: [low, high]}; sd and interval are
///                     null for n = 1, except that the interval of a task then covers its instances
std::string make_page(std::string_view template_name, const nlohmann::json& data);

}  // namespace tamis::report
