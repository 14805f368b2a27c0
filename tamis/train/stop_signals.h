#pragma once

namespace tamis::train {

/// While it lives, the first SIGINT or SIGTERM is only noted, so that the work at hand can end cleanly; a second one
/// ends the process at once, as always. Objects may lie within each other's lifetimes: they are as one.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();  // restores what was there before
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The signal noted, or 0.
  int received() const;
};

}  // namespace tamis::train
