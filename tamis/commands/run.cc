#include "tamis/commands/run.h"

#include "tamis/commands/commands.h"
#include "tamis/nn/tensor_memory.h"

void TAMIS_RUN(const tamis::commands::Command& command) {
  tamis::nn::keep_tensor_memory();
  std::visit([](const auto& each) { tamis::commands::run(each); }, command);
}
