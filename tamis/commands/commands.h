#pragma once

#include "tamis/commands/options.h"

namespace tamis::commands {

// The work of each command. Options have passed check_options.

void run(const TrainCommand& command);
void run(const TaskEvalCommand& command);
void run(const LossCommand& command);
void run(const ScoreCommand& command);
void run(const GenerateCommand& command);
void run(const InspectCommand& command);
void run(const ReportCommand& command);
void run(const GenerateDataCommand& command);
void run(const BenchCommand& command);
void run(const ShootoutCommand& command);

}  // namespace tamis::commands
