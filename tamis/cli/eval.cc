#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tamis/base/digest.h"
#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/input.h"
#include "tamis/base/json.h"
#include "tamis/base/terminal.h"
#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/task_options.h"
#include "tamis/cli/values.h"
#include "tamis/data/registry.h"
#include "tamis/eval/loss_eval.h"
#include "tamis/eval/task_eval.h"

namespace tamis::cli {
namespace {

struct TaskEvalCommand {
  std::filesystem::path directory;  // checkpoint or run directory
  eval::TaskEvalOptions options;
  ProcessOptions processes;
  RunOptions run;
  bool json = false;
};

struct LossCommand {
  std::filesystem::path directory;           // checkpoint or run directory
  std::vector<std::filesystem::path> files;  // "-" reads standard input
  eval::LossEvalOptions options;
  ProcessOptions processes;
  RunOptions run;
  bool json = false;
};

/// The name of a result in eval/: the task, then what --set-model changed, as in abc_digits.rope_theta=500000.
std::string name_of(const std::string& task, const nlohmann::json& changes) {
  std::string changed;
  for (const auto& [key, value] : changes.items()) {
    changed += fmt::format("{}{}={}", changed.empty() ? "" : ",", key, plain_text(value));
  }
  if (changed.empty()) return task;
  constexpr size_t kLongest = 100;  // bytes of a file name
  if (changed.size() > kLongest || changed.find('/') != std::string::npos) changed = sha256(changed).substr(0, 16);
  return task + "." + changed;
}

/// Prints the result as JSON where that is asked for. When the directory is a run's, also keeps it as eval/<name>.json,
/// where the report looks for it.
template <typename EvalCommand>
void keep(const EvalCommand& command, const infer::LoadedModel& loaded, nlohmann::json json) {
  const nlohmann::json changes = model_changes(command.run);
  json["checkpoint"] = loaded.checkpoint.string();
  if (!changes.empty()) json["model_changes"] = changes;
  if (!std::filesystem::equivalent(loaded.checkpoint, command.directory)) {
    make_directories(command.directory / "eval");
    const std::string name = name_of(json["task"], changes);
    write_file_atomic(command.directory / "eval" / (name + ".json"), json_text(json, 2));
  }
  if (command.json) fmt::print("{}", to_line(json));
}

std::string digest_of_weights(const models::Model& model) {
  std::string digests;
  for (const models::Parameter& parameter : model.parameters()) {
    const at::Tensor tensor = parameter.tensor.detach().cpu().contiguous();
    digests += sha256({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()});
  }
  return sha256(digests);
}

/// Several processes that share an evaluation, or only this one.
class Processes {
 public:
  Processes(const ProcessOptions& options, const RunOptions& run) : mesh_(join_processes(options, run)) {}

  distributed::ProcessGroup* group() const { return mesh_ ? &mesh_->all() : nullptr; }
  /// Whether this process shows progress and results.
  bool first() const { return !mesh_ || mesh_->all().rank() == 0; }
  eval::Progress progress(const std::string& what) const {
    return first() ? progress_with_eta(what) : eval::Progress();
  }

  /// Throws ExitCode::kUsage when several processes would read standard input.
  void refuse_standard_input(const std::string& task, const std::filesystem::path& file) const {
    if (!mesh_ || file != "-") return;
    fail(ExitCode::kUsage, "eval {}: several processes cannot share standard input; name a file", task);
  }

  /// Throws ExitCode::kUsage unless all processes evaluate the same model with the same settings.
  void expect_same(const infer::LoadedModel& loaded, const nlohmann::json& settings) const {
    if (!mesh_) return;
    const nlohmann::json mine = {
        {"model", loaded.model->config()},
        {"weights", digest_of_weights(*loaded.model)},
        {"device", c10::DeviceTypeName(loaded.model->parameters().front().tensor.device().type(), /*lower_case=*/true)},
        {"evaluation", settings}};
    const std::vector<std::string> all = mesh_->all().gather(json_text(mine));
    for (size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank] == all[0]) continue;
      const nlohmann::json difference =
          nlohmann::json::diff(parse_json(all[0], "process 0"), parse_json(all[rank], fmt::format("process {}", rank)));
      fail(ExitCode::kUsage,
           "process {} evaluates something else than process 0, see {}; start all with the same command", rank,
           difference[0]["path"].get<std::string>());
    }
  }

 private:
  std::unique_ptr<distributed::ProcessMesh> mesh_;
};

void run(const TaskEvalCommand& command) {
  check_options(command.run);
  eval::check_options(command.options);
  const Processes processes(command.processes, command.run);
  const at::Device device = start(command.run);
  processes.refuse_standard_input(command.options.task, command.options.haystack);
  const infer::LoadedModel loaded = infer::load(command.directory, device, model_changes(command.run));
  if (processes.group() != nullptr) {
    nlohmann::json settings = eval::to_json(eval::TaskResult{.options = command.options});
    settings["needle_score"] = command.options.needle_score;
    if (!command.options.haystack.empty()) settings["haystack"] = sha256(read_input(command.options.haystack));
    processes.expect_same(loaded, settings);
  }
  const auto result =
      eval::evaluate_task(loaded, command.options, processes.progress(command.options.task), processes.group());
  if (!processes.first()) return;
  keep(command, loaded, eval::to_json(result));
  if (!command.json) fmt::print("{}", eval::to_table(result, use_colour(stdout)));
}

void run(const LossCommand& command) {
  check_options(command.run);
  eval::check_options(command.options);
  const Processes processes(command.processes, command.run);
  const at::Device device = start(command.run);
  std::vector<std::string> texts, names;
  if (std::ranges::count(command.files, "-") > 1) {
    fail(ExitCode::kUsage, "standard input, -, is named twice; name it once");
  }
  for (const std::filesystem::path& file : command.files) processes.refuse_standard_input("loss", file);
  for (const std::filesystem::path& file : command.files) {
    texts.push_back(read_input(file));
    if (texts.back().empty() && !command.options.middle)
      fail(ExitCode::kInput, "{}: is empty; expected text", input_name(file));
    names.push_back(file.string());
  }
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const infer::LoadedModel loaded = infer::load(command.directory, device, model_changes(command.run));
  const eval::LossEvalOptions& options = command.options;
  nlohmann::json settings = {{"window", options.window_tokens}, {"expand_windows", options.expand_windows},
                             {"middle", options.middle},        {"points", options.points},
                             {"smooth", options.smooth},        {"texts", nlohmann::json::array()}};
  for (const std::string& text : texts) settings["texts"].push_back(sha256(text));
  processes.expect_same(loaded, settings);
  const auto result = eval::evaluate_loss(loaded, views, options, processes.progress("loss"), processes.group());
  if (!processes.first()) return;
  nlohmann::json json = eval::to_json(result);
  if (names.size() == 1) {
    json["file"] = names.front();
  } else {
    json["files"] = names;
  }
  keep(command, loaded, std::move(json));
  if (!command.json) fmt::print("{}", eval::to_table(result));
}

template <typename EvalCommand>
void add_eval_options(CLI::App& task, EvalCommand& command) {
  // Processes meet when they have finished their parts of a length, and one may take hours longer than another.
  command.processes.timeout_seconds = 24 * 3600;
  add_json_option(task, command.json);
  add_set_model_option(task, command.run.model_changes);
  add_process_options(task, command.processes);
  add_run_options(task, command.run);
}

/// Settings for the example: a model with the byte tokenizer has no more than 257 ids.
std::string example_settings(const data::Settings& settings) {
  const auto vocab = settings.find("vocab");
  return vocab != settings.end() && vocab->second > 257 ? " --vocab 256" : "";
}

void add_evaluated_task(CLI::App& eval, const data::Task& task) {
  auto command = std::make_shared<TaskEvalCommand>();
  eval::TaskEvalOptions& options = command->options = eval::default_options(task);
  auto* sub = eval.add_subcommand(task.name, summary_of(task));
  sub->add_option("dir", command->directory, "Checkpoint or run directory")->type_name("DIR")->required();
  add_numbers(*sub, "--lengths", options.lengths, "Tokens of the prompt, separated by commas");
  if (task.takes_depth) {
    add_numbers(*sub, "--depths", options.depths, "Positions of the hidden item, 0 (first) to 1 (last)");
  }
  add_number(*sub, "--instances", options.instances, "Instances for each length and depth");
  add_number(*sub, "--cell-tokens", options.cell_tokens,
             "Token budget for each length and depth; long prompts get fewer instances; 0: no limit");
  add_number(*sub, "--seed", options.seed, "Seed of the instances");
  add_task_options(*sub, task, options.settings, options.haystack);
  sub->add_flag("--expand-windows,!--no-expand-windows", options.expand_windows,
                "Make windows beyond the training length infinite (SWE)")
      ->default_str("true");
  if (std::holds_alternative<data::TextTask>(task.kind)) {
    sub->add_flag("--needle-score", options.needle_score,
                  "Also measure the attention on the answer, for prompts with one answer; takes several times longer");
    sub->add_flag("--skip-end-of-text", options.skip_end_of_text,
                  "Continue with the likeliest token that does not end the text");
  }
  add_eval_options(*sub, *command);
  sub->footer(fmt::format("tamis eval {} runs/demo{}{} --lengths {} --instances 100", task.name, example_haystack(task),
                          example_settings(options.settings), fmt::join(std::span(options.lengths).first(3), ",")));
  sub->callback([command] { run(*command); });
}

void add_loss(CLI::App& eval) {
  auto command = std::make_shared<LossCommand>();
  auto* task = eval.add_subcommand("loss", "Mean loss of texts, per token, per byte and by position.");
  task->add_option("dir", command->directory, "Checkpoint or run directory")->type_name("DIR")->required();
  task->add_option("file", command->files, "Text files, evaluated separately; - reads standard input")
      ->type_name("FILE")
      ->required();
  add_number(*task, "--window", command->options.window_tokens,
             "Tokens of an evaluation window, which has a context of its own; 0: the training length");
  task->add_flag("--middle", command->options.middle,
                 "Evaluate only the window in the middle of each text; shorter texts are left out");
  add_number(*task, "--points", command->options.points,
             "Add the loss at this many evenly spaced positions of the window to the JSON, for curves");
  add_number(*task, "--smooth", command->options.smooth,
             "Average each point over this share of the window; needs --points");
  task->add_flag("--expand-windows,!--no-expand-windows", command->options.expand_windows,
                 "Make windows beyond the training length infinite (SWE)");
  add_eval_options(*task, *command);
  task->footer(
      "tamis eval loss runs/shakespeare book.txt --window 4096\n"
      "tamis eval loss runs/shakespeare books/*.txt --window 4096 --middle --points 100 --smooth 0.05 --json");
  task->callback([command] { run(*command); });
}

}  // namespace

void add_eval(CLI::App& app) {
  auto* eval = app.add_subcommand("eval", "Measure a trained model.");
  eval->require_subcommand(1);
  for (const data::Task& task : data::tasks()) add_evaluated_task(*eval, task);
  add_loss(*eval);
  refuse_other_names(*eval, "task", "task");
  eval->footer(
      "tamis eval abc_digits runs/demo --instances 100\n"
      "torchrun --nproc-per-node 4 --no-python tamis eval abc_digits runs/demo");
}

}  // namespace tamis::cli
