#include "tamis/cli/commands.h"

namespace tamis::cli {

void add_bench(CLI::App& app);
void add_data(CLI::App& app);
void add_eval(CLI::App& app);
void add_generate(CLI::App& app);
void add_inspect(CLI::App& app);
void add_report(CLI::App& app);
void add_score(CLI::App& app);
void add_shootout(CLI::App& app);
void add_train(CLI::App& app);

void add_commands(CLI::App& app) {
  add_bench(app);
  add_data(app);
  add_eval(app);
  add_generate(app);
  add_inspect(app);
  add_report(app);
  add_score(app);
  add_shootout(app);
  add_train(app);
}

}  // namespace tamis::cli
