#include "tamis/commands/run.h"

#include "tamis/nn/tensor_memory.h"

namespace tamis::commands {

void run(const TrainCommand& command);
void run(const AbcDigitsCommand& command);
void run(const LossCommand& command);
void run(const ScoreCommand& command);
void run(const GenerateCommand& command);
void run(const InspectCommand& command);
void run(const ReportCommand& command);
void run(const BenchCommand& command);

}  // namespace tamis::commands

void tamis_run(const tamis::commands::Command& command) {
  tamis::nn::keep_tensor_memory();
  std::visit([](const auto& each) { tamis::commands::run(each); }, command);
}
