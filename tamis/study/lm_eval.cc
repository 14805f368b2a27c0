#include "tamis/study/lm_eval.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "tamis/base/digest.h"
#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"
#include "tamis/study/book.h"
#include "tamis/study/python.h"

namespace tamis::study {
namespace {

using nlohmann::json;

/// Variables of the environment with which the interpreter finds the package of a source tree.
std::vector<std::string> environment() {
  std::vector<std::string> variables = {fmt::format("OMP_NUM_THREADS={}", at::get_num_threads())};
  if (!std::filesystem::exists("python/tamis/lm_eval.py")) return variables;
  std::string path = std::filesystem::absolute("python").string();
  if (const char* before = std::getenv("PYTHONPATH"); before != nullptr && *before != '\0')
    path += fmt::format(":{}", before);
  variables.push_back("PYTHONPATH=" + path);
  return variables;
}

/// The folder `include`; empty without one.
std::filesystem::path folder_of(const LmEvalOptions& options) {
  if (options.include.empty() || std::filesystem::exists(options.include)) return options.include;
  try {
    const std::filesystem::path installed = studies_directory().parent_path().parent_path() / options.include;
    if (std::filesystem::exists(installed)) return installed;
  } catch (const Error&) {  // there are no recipes
  }
  return options.include;
}

/// results_TIME.json, which the harness writes into a folder named after the model.
json results_in(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("results_") && name.ends_with(".json"))
      return try_read_object(entry.path()).value_or(json::object()).value("results", json());
  }
  return json();
}

}  // namespace

std::string digest_of_tasks(const LmEvalOptions& options) {
  if (options.include.empty()) return "";
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_of(options), error)) {
    if (entry.is_regular_file() && entry.path().extension() != ".pyc") files.push_back(entry.path());
  }
  if (error) fail(ExitCode::kInput, "{}: cannot be read: {}", options.include, error.message());
  std::ranges::sort(files);
  std::string all;
  for (const auto& file : files) all += file.filename().string() + sha256(MappedFile(file).text());
  return sha256(all);
}

void add_lm_eval(const std::filesystem::path& run, const LmEvalOptions& options, const AddRow& add) {
  const std::filesystem::path output = run / fmt::format(".lm_eval-{}", getpid());
  std::vector<std::string> arguments = {python(),
                                        "-m",
                                        "tamis.lm_eval",
                                        "--model",
                                        "tamis",
                                        "--model_args",
                                        "path=" + run.string(),
                                        "--tasks",
                                        fmt::format("{}", fmt::join(options.tasks, ",")),
                                        "--output_path",
                                        output.string()};
  const auto more = [&](const std::string& name, const std::string& value) {
    arguments.insert(arguments.end(), {name, value});
  };
  if (!options.include.empty()) more("--include_path", folder_of(options).string());
  if (options.limit > 0) more("--limit", std::to_string(options.limit));
  const auto [status, text] = run_program(arguments, environment());
  std::error_code ignored;
  const json results = status == 0 && std::filesystem::exists(output, ignored) ? results_in(output) : json();
  std::filesystem::remove_all(output, ignored);
  if (!results.is_object()) {
    fail(
        ExitCode::kRuntime,
        "{}: {} -m tamis.lm_eval: {}; it needs Python with torch and lm_eval: make python, or name an interpreter that "
        "has them in TAMIS_PYTHON",
        run.string(), python(), status == 127 ? "not found" : one_line(last_line(text)));
  }
  for (const std::string& task : options.tasks) {
    const json of_task = results.value(task, json::object());
    if (!of_task.contains("acc,none")) {
      fail(ExitCode::kUsage, "{}: the task {} of lm_eval has no accuracy; choose a multiple-choice task", run.string(),
           shown(task));
    }
    for (const char* metric : {"acc", "acc_norm"}) {
      const json value = of_task.value(std::string(metric) + ",none", json());
      if (value.is_number()) add(metric, value, {{"task", task}});
    }
  }
}

}  // namespace tamis::study
