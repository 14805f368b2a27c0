#pragma once

namespace tamis::kernels {

/// Keeps Highway's dynamic dispatch to what TAMIS_MAX_ISA allows (tamis/base/instruction_set.h). To be called before
/// the first kernel. Throws ExitCode::kUsage for a value that it does not know. True, so that it can initialise a
/// constant.
bool restrict_targets();

}  // namespace tamis::kernels
