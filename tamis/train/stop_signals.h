#pragma once

#include "tamis/base/error.h"

namespace tamis::train {

/// While an object of this class exists, the first SIGHUP, SIGINT or SIGTERM is only recorded, so that the present step
/// can end and be saved; a second one ends the process at once. A SIGHUP that is ignored, as under nohup, stays
/// ignored. Objects whose lifetimes overlap share what is recorded.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();  // restores the previous handlers
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The signal recorded, or 0.
  int received() const;
};

/// SIGHUP, SIGINT or SIGTERM: `SIGINT`, and the exit code of a command that it stopped.
const char* name_of_signal(int signal);
ExitCode exit_code_of(int signal);

}  // namespace tamis::train
