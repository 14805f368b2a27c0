#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tamis::report {

/// One HTML file that shows `data`: the template of web/ with its style sheet, its scripts and Plotly written into it.
/// It loads nothing from anywhere (its content security policy forbids it). Text may hold anything; bytes that are not
/// UTF-8 show as U+FFFD.
///
/// "report.html", a run or a model. Every part but `version`, `title` and `model` may be missing:
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
/// "shootout.html", mixers side by side. Every part but `version`, `title` and the mixers' names may be missing (what
/// has not run yet is left out), and every number may be null (not finite, not measured):
///
///   version, title    text
///   done, jobs        trainings, so far and in all
///   train             {length, steps, batch_tokens, tokens}, the same for every mixer
///   task_lengths      {TASK: tokens that it was trained at}
///   chance            {score: {TASK: the score of guessing}, loss: {SOURCE: its loss}}, where answers are drawn from
///   few lr_grid, seeds    lists of numbers recipe            text;  machine  any JSON object mixers            [{name,
///   model_type, config, parameters, parameters_without_embedding, chosen_lr, lr_edge, search, runs,
///                     flops_per_token, state_bytes, state_bytes_per_token, summary}], in the order of the page:
///     lr_edge         "lowest" or "highest" where the chosen rate is the last of the grid, else null
///     search          [{lr, loss, status, steps}], one a rate; status is done, diverged or missing
///     runs            [{seed, lr, status, seconds, tokens_per_second, threads, validation, by_position, curve,
///                     tasks}], one a seed:
///       validation    {SOURCE: nats a token}
///       by_position   {SOURCE: [{first, last, tokens, loss}]}, as to_json of tamis/eval/position_bins.h
///       curve         {tokens: [..], loss: [..]}
///       tasks         {TASK: [{length, instances, score, exact_match, wilson_95: [low, high]}]}; scores in [0, 1]
///     flops_per_token [{length, flops}];  state_bytes  [{length, bytes}]; lengths rise
///     summary         {validation: {SOURCE: spread}, tasks: {TASK: [{length, ..spread}]}, tokens_per_second: spread}
///                     over the runs that are done; spread is {mean, sd, n, interval_95: [low, high]}: sd and interval
///                     are null for n = 1, but for tasks, whose interval then is of the instances
std::string make_page(std::string_view template_name, const nlohmann::json& data);

}  // namespace tamis::report
