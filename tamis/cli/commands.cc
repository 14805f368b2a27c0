#include "tamis/cli/commands.h"

namespace tamis::cli {

void add_bench(CLI::App& app);
void add_completion(CLI::App& app);
void add_convert(CLI::App& app);
void add_data(CLI::App& app);
void add_detokenize(CLI::App& app);
void add_eval(CLI::App& app);
void add_generate(CLI::App& app);
void add_help(CLI::App& app);
void add_inspect(CLI::App& app);
void add_man(CLI::App& app);
void add_plan(CLI::App& app);
void add_report(CLI::App& app);
void add_repro(CLI::App& app);
void add_score(CLI::App& app);
void add_study(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_train(CLI::App& app);

void add_commands(CLI::App& app) {
  add_bench(app);
  add_completion(app);
  add_convert(app);
  add_data(app);
  add_detokenize(app);
  add_eval(app);
  add_generate(app);
  add_help(app);
  add_inspect(app);
  add_man(app);
  add_plan(app);
  add_report(app);
  add_repro(app);
  add_score(app);
  add_study(app);
  add_tokenize(app);
  add_train(app);
}

}  // namespace tamis::cli
