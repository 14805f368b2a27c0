#include "tamis/report/report.h"

#include <fmt/format.h>

#include <algorithm>

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

namespace tamis::report {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

/// Tokens to draw the maps for, and what they are.
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
  json relevance = describe_relevance(*loaded.model, *loaded.tokenizer, text.tokens, {});
  relevance["note"] = fmt::format("How much every query takes of every key, in all heads: {} tokens of {}.",
                                  text.tokens.size(), text.origin);
  return relevance;
}

/// The last part of the path, also of `runs/demo/` and of `.`.
std::string name_of(const fs::path& run) {
  const fs::path whole = fs::weakly_canonical(run);
  return whole.filename().empty() ? whole.string() : whole.filename().string();
}

/// What the page shows of another run: its name, its model, what it retrieves.
json describe_beside(const fs::path& run) {
  const json data = read_run(run);
  if (!data.contains("abc_digits")) {
    fail(ExitCode::kInput, "{0}: expected a run that was evaluated; `tamis eval abc_digits {0}` does that",
         run.string());
  }
  const json model = describe_model(train::load_recipe(run / "config.toml").model);
  return {{"title", name_of(run)},
          {"type", model["type"]},
          {"parameters", model["parameters"]},
          {"abc_digits", data["abc_digits"]}};
}

bool has_checkpoint(const fs::path& run) {
  const fs::path checkpoints = run / "checkpoints";
  return fs::is_directory(checkpoints) && fs::directory_iterator(checkpoints) != fs::directory_iterator();
}

}  // namespace

WrittenReport write_report(const ReportOptions& options, at::Device device) {
  WrittenReport written{.path = options.output.empty() ? options.run / "report.html" : options.output, .left_out = {}};
  json data = read_run(options.run);
  const train::Recipe recipe = train::load_recipe(options.run / "config.toml");
  data["version"] = kVersion;
  data["title"] = name_of(options.run);
  data["model"] = describe_model(recipe.model);
  for (const fs::path& other : options.beside) data["beside"].push_back(describe_beside(other));
  if (has_checkpoint(options.run)) {
    const infer::LoadedModel loaded = infer::load(options.run, device);
    data["tiles"] = describe_tiles(loaded.model->tiles());
    try {
      data["relevance"] = describe_maps(options, loaded, recipe);
    } catch (const Error& error) {  // a text file of the recipe has moved, say: the rest of the report stands
      written.left_out.push_back(fmt::format("relevance maps ({})", error.what()));
    }
  } else {
    written.left_out.push_back("relevance maps (no checkpoint yet)");
  }
  write_file_atomic(written.path, make_page("report.html", data));
  return written;
}

}  // namespace tamis::report
