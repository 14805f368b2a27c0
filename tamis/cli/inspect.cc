#include "tamis/report/inspect.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/input.h"
#include "tamis/base/message.h"
#include "tamis/base/names.h"
#include "tamis/base/output_file.h"
#include "tamis/base/terminal.h"
#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/values.h"
#include "tamis/report/page.h"
#include "tamis/report/recipe_inspection.h"
#include "tamis/train/options.h"
#include "tamis/train/recipe.h"

namespace tamis::cli {
namespace {

struct InspectCommand {
  report::InspectOptions options;      // checkpoint: also a recipe, FILE.toml or - for standard input
  std::vector<std::string> overrides;  // of a recipe: `train.length=512`
  int64_t psi = 0;                     // > 0: no checkpoint
  int64_t vocab_size = 257;
  std::string text_file;       // "-" reads standard input
  std::filesystem::path html;  // empty: print what was found
  RunOptions run;
  bool json = false;

  bool of_recipe() const { return options.checkpoint == "-" || options.checkpoint.extension() == ".toml"; }
};

void check_options(const InspectCommand& command) {
  check_options(command.run);
  if (command.options.checkpoint.empty() == (command.psi == 0)) {
    fail(ExitCode::kUsage,
         "inspect: expected a checkpoint, a recipe or --psi, but got {}; try: tamis inspect runs/demo",
         command.psi == 0 ? "neither" : "both");
  }
  report::check_options(command.options.map);
  if (command.options.map.file.empty() && !command.options.map.heads.empty()) {
    fail(ExitCode::kUsage, "inspect: --tile selects maps for a picture; name it with --map FILE.svg");
  }
  if (!command.options.map.file.empty() && command.text_file.empty()) {
    fail(ExitCode::kUsage, "inspect: --map draws the maps of a text; give one with --text FILE, - for standard input");
  }
  const bool untrained = command.psi > 0 || command.of_recipe();
  if (untrained && !(command.options.model_changes.empty() && command.text_file.empty())) {
    fail(ExitCode::kUsage, "inspect: {} needs a checkpoint; {} describes a model that is not trained yet",
         command.text_file.empty() ? "--set-model" : "--text",
         command.psi > 0 ? "--psi" : input_name(command.options.checkpoint));
  }
  for (const std::string& assignment : command.overrides) train::split_override(assignment);
  if (!command.overrides.empty() && !command.of_recipe()) {
    fail(ExitCode::kUsage,
         "inspect: --set changes a key of a recipe, FILE.toml or -; use --set-model for a checkpoint");
  }
}

nlohmann::json find(const InspectCommand& command, const report::InspectOptions& options, at::Device device) {
  if (command.psi > 0) return report::inspect_config({{"psi", command.psi}, {"vocab_size", command.vocab_size}});
  if (!command.of_recipe()) return report::inspect(options, device);
  const train::Recipe recipe = train::load_recipe(options.checkpoint, command.overrides, train::RecipeUse::kPlan);
  for (const std::string& note : recipe.notes) print_message(stderr, one_line(note) + "\n");
  return report::inspect_recipe(recipe, device);
}

void run(const InspectCommand& command) {
  check_options(command);
  for (const std::filesystem::path& file : {command.html, command.options.map.file}) {
    if (!file.empty()) check_output_file(file);
  }
  const at::Device device = start(command.run);
  report::InspectOptions options = command.options;
  if (!command.text_file.empty()) options.text = read_input(command.text_file);
  const nlohmann::json found = find(command, options, device);
  if (!command.html.empty()) write_file_atomic(command.html, report::make_page("report.html", found));
  if (command.json) {
    fmt::print("{}", to_line(report::inspection_json(found)));
    return;
  }
  if (command.html.empty() && options.map.file.empty()) {
    fmt::print("{}", report::inspection_text(found, terminal_columns()));
  }
  // A path alone on a line is not escaped, so that another program can open it.
  for (const std::filesystem::path& written : {command.html, options.map.file}) {
    if (!written.empty()) fmt::print(summary_stream(written), "{}\n", written.string());
  }
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto command = std::make_shared<InspectCommand>();
  report::InspectOptions& options = command->options;
  auto* sub = app.add_subcommand("inspect", "Count parameters; show windows, acceptance widths, relevance maps.");
  sub->add_option(
         "checkpoint", options.checkpoint,
         "Checkpoint or run directory; or a recipe, whose model is not trained yet: FILE.toml, or - for standard input")
      ->type_name("FILE");
  sub->add_option("--set", command->overrides, "Change a key of the recipe, as table.key=value; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  add_number(*sub, "--psi", command->psi, "Without a checkpoint: count the parameters of this psi", whole(1))
      ->default_str("");
  add_number(*sub, "--vocab", command->vocab_size, "Vocabulary for --psi", whole(1));
  sub->add_option("--text", command->text_file, "Text whose relevance maps to show; - reads standard input")
      ->type_name("FILE");
  sub->add_option("--html", command->html, "Write a page with the maps of all heads here")->type_name("FILE");
  sub->add_option("--map", options.map.file, "Write the maps as a picture here: FILE.svg with labels, or FILE.png")
      ->type_name("FILE");
  sub->add_option("--tile", options.map.heads,
                  "In --map, only this head, LAYER.HEAD, or this layer, LAYER; may be repeated (default: all)")
      ->type_name("HEAD")
      ->allow_extra_args(false);
  sub->add_option(
         "--map-scale", options.map.scale,
         "Colours of --map: value; row, by each row's largest weight; log; or auto: value for screening, else log")
      ->type_name("SCALE")
      ->capture_default_str();
  add_number(*sub, "--tokens", options.most_tokens, "Maximum number of tokens of the text", whole(1));
  sub->add_flag("--expand-windows,!--no-expand-windows", options.expand_windows,
                "Make windows beyond the training length infinite (SWE)");
  add_set_model_option(*sub, options.model_changes);
  add_json_option(*sub, command->json);
  add_run_options(*sub, command->run);
  sub->footer(
      "tamis inspect runs/demo --text letter.txt --html maps.html\n"
      "tamis inspect runs/demo --text letter.txt --map maps.svg --tile 2.5\n"
      "tamis inspect recipes/demo.toml --set model.num_hidden_layers=8\n"
      "tamis inspect --psi 16 --vocab 50257 --json");
  sub->callback([command] { run(*command); });
}

}  // namespace tamis::cli
