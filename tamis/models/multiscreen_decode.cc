// Decoding with a Multiscreen.

#include "tamis/base/error.h"
#include "tamis/models/multiscreen.h"

namespace tamis::models {

std::unique_ptr<DecodingState> Multiscreen::new_state(const ForwardOptions&) const {
  fail(ExitCode::kRuntime, "multiscreen: decoding needs the stores of ops::ScreeningState");
}

at::Tensor Multiscreen::decode(const at::Tensor&, std::span<DecodingState* const>) const {
  fail(ExitCode::kRuntime, "multiscreen: decoding needs the stores of ops::ScreeningState");
}

}  // namespace tamis::models
