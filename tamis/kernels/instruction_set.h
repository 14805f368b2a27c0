#pragma once

namespace tamis::kernels {

/// Restricts Highway's dynamic dispatch to what TAMIS_MAX_ISA allows (tamis/base/instruction_set.h). Must be called
/// before the first kernel. Throws ExitCode::kUsage for an unknown value. Returns true, so that it can initialise a
/// constant.
bool restrict_targets();

}  // namespace tamis::kernels
