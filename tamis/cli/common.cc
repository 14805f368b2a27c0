#include "tamis/cli/common.h"

#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/names.h"
#include "tamis/cli/values.h"

namespace tamis::cli {

void add_run_options(CLI::App& command, commands::RunOptions& options) {
  add_number(command, "--threads", options.threads, "Threads to compute with; 0: one per core");
  command.add_option("--device", options.device, "Where to compute")->type_name("cpu|cuda")->capture_default_str();
}

void add_set_model_option(CLI::App& command, std::vector<std::string>& changes) {
  command
      .add_option("--set-model", changes,
                  "KEY=VALUE instead of what config.json says, such as window=256 or rope_factor=4; several times")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
}

void add_weights_option(CLI::App& command, infer::WeightFormat& weights) {
  const auto read = [&weights](const std::string& name) { weights = infer::weight_format_named(name); };
  command.add_option_function<std::string>("--weights", read, "Read the model's matrices in this format")
      ->type_name("float32|bfloat16|int8")
      ->default_str("float32");
}

void add_json_option(CLI::App& command, bool& json) {
  command.add_flag("--json", json, "Print one line of JSON instead of text");
}

void refuse_other_names(CLI::App& app, const std::string& kind) {
  // An unknown first word lands in this option, which is there only to name the nearest subcommand.
  app.add_option(kind, "One of the names below")->group("")->check([&app, kind](const std::string& name) {
    std::vector<std::string> known;
    for (const CLI::App* each : app.get_subcommands({})) known.push_back(each->get_name());
    fail(ExitCode::kUsage, "{}", unknown_name(kind, name, known));
    return std::string();
  });
}

}  // namespace tamis::cli
