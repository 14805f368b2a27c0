#include "tamis/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/version.h"
#include "tamis/infer/load.h"
#include "tamis/report/model_data.h"
#include "tamis/report/page.h"
#include "tamis/report/relevance_data.h"
#include "tamis/report/run_data.h"
#include "tamis/train/data_set.h"
#include "tamis/train/recipe.h"
#include "tamis/train/toml.h"
#include "tamis/train/training_checkpoint.h"

namespace tamis::report {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

/// The tokens for the relevance maps, and a description of where they come from.
struct MapText {
  std::vector<int64_t> tokens;
  std::string origin;
};

MapText map_text(const ReportOptions& options, const infer::LoadedModel& loaded, const train::Recipe& recipe) {
  if (options.text) return {loaded.tokenizer->encode(*options.text), "the given text"};
  const train::DataSet data = train::open_data(recipe, *loaded.tokenizer);
  const train::ValidationSet& set = data.validation.at(0);
  return {set.examples.at(0).tokens, fmt::format("a validation example of {}", set.name)};
}

json describe_maps(const ReportOptions& options, const infer::LoadedModel& loaded, const train::Recipe& recipe) {
  MapText text = map_text(options, loaded, recipe);
  text.tokens.resize(std::min(text.tokens.size(), static_cast<size_t>(options.most_tokens)));
  json relevance = to_json(find_relevance(*loaded.model, *loaded.tokenizer, text.tokens, {}));
  relevance["note"] = fmt::format("The weight of every key for every query, in all heads: {} tokens of {}.",
                                  text.tokens.size(), text.origin);
  return relevance;
}

/// The last `parts` components of the resolved path; works for `runs/demo/` and `.` too.
std::string name_of(const fs::path& run, int parts) {
  const fs::path whole = fs::weakly_canonical(run);
  fs::path name;
  for (fs::path rest = whole; parts > 0 && rest.has_relative_path(); rest = rest.parent_path(), --parts) {
    name = name.empty() ? rest.filename() : rest.filename() / name;
  }
  return name.empty() ? whole.string() : name.string();
}

/// The shortest names that are distinct, of at most kMostParts components.
std::vector<std::string> names_of(const std::vector<fs::path>& runs) {
  constexpr int kMostParts = 8;
  for (int parts = 1;; ++parts) {
    std::vector<std::string> names;
    for (const fs::path& run : runs) names.push_back(name_of(run, parts));
    if (parts == kMostParts || std::set(names.begin(), names.end()).size() == names.size()) return names;
  }
}

/// The data of a run without its checkpoint, and its recipe.
struct DescribedRun {
  json data;
  train::Recipe recipe;
};

DescribedRun describe_run(const fs::path& run, const std::string& name) {
  json data = read_run(run);
  train::Recipe recipe = train::load_run_recipe(run);
  if (!data.contains("recipe")) data["recipe"] = train::to_toml(train::to_json(recipe));  // no config.toml
  data["title"] = name;
  data["model"] = describe_model(recipe.model);
  data["settings"] = train::to_json(recipe);
  return {std::move(data), std::move(recipe)};
}

/// The data of a run that the first one is compared with.
json describe_other(const fs::path& run, const std::string& name) {
  json data = describe_run(run, name).data;
  for (const char* part : {"recipe", "run"}) data.erase(part);
  if (data.contains("training")) data["training"].erase("tiles");
  return data;
}

bool has_checkpoint(const fs::path& run) {
  const fs::path checkpoints = run / "checkpoints";
  return fs::is_directory(checkpoints) && fs::directory_iterator(checkpoints) != fs::directory_iterator();
}

}  // namespace

WrittenReport write_report(const ReportOptions& options, at::Device device) {
  TAMIS_ASSERT(!options.runs.empty());
  const fs::path& run = options.runs.front();
  WrittenReport written{.path = options.output.empty() ? run / "report.html" : options.output, .left_out = {}};
  const std::vector<std::string> names = names_of(options.runs);
  auto [data, recipe] = describe_run(run, names.front());
  data["version"] = kVersion;
  for (size_t i = 1; i < options.runs.size(); ++i) data["others"].push_back(describe_other(options.runs[i], names[i]));
  if (has_checkpoint(run)) {
    const infer::LoadedModel loaded = infer::load(run, device);
    data["tiles"] = describe_screening_heads(loaded.model->screening_heads());
    try {
      data["relevance"] = describe_maps(options, loaded, recipe);
    } catch (const Error& error) {  // for example, a text file of the recipe is missing; write the rest of the report
      written.left_out.push_back(fmt::format("relevance maps ({})", error.what()));
    }
  } else {
    written.left_out.push_back("relevance maps (no checkpoint yet)");
  }
  write_file_atomic(written.path, make_page("report.html", data));
  return written;
}

}  // namespace tamis::report
