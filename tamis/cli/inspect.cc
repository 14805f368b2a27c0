#include <memory>

#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/library.h"
#include "tamis/cli/values.h"

namespace tamis::cli {

void add_inspect(CLI::App& app) {
  auto command = std::make_shared<commands::InspectCommand>();
  report::InspectOptions& options = command->options;
  auto* sub = app.add_subcommand("inspect", "Count parameters; show windows, acceptance widths, relevance maps.");
  sub->add_option("checkpoint", options.checkpoint,
                  "Checkpoint or run directory; or a recipe, FILE.toml, whose model is not trained yet")
      ->type_name("FILE");
  sub->add_option("--set", command->overrides, "Change a key of the recipe, as table.key=value; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  add_value(*sub, "--psi", command->psi, whole(1), "Without a checkpoint: count the parameters of this Psi")
      ->default_str("");
  add_value(*sub, "--vocab", command->vocab_size, whole(1), "Vocabulary for --psi");
  sub->add_option("--text", command->text_file, "Text whose relevance maps to show; - reads standard input")
      ->type_name("FILE");
  sub->add_option("--html", command->html, "Write a page with the maps of all tiles here")->type_name("FILE");
  sub->add_option("--map", options.map.file, "Write the maps as a picture here: FILE.svg with labels, or FILE.png")
      ->type_name("FILE");
  sub->add_option("--tile", options.map.tiles,
                  "In --map, only this tile, LAYER.HEAD, or this layer, LAYER; several times (default: all)")
      ->type_name("TILE")
      ->allow_extra_args(false);
  sub->add_option(
         "--map-scale", options.map.scale,
         "Colours of --map: value; row, by each row's largest weight; log; or auto: value for screening, else log")
      ->type_name("SCALE")
      ->capture_default_str();
  add_value(*sub, "--tokens", options.most_tokens, whole(1), "Most tokens of the text");
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
