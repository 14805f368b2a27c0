#pragma once

namespace tamis::train {

/// While an object of this class exists, the first SIGINT or SIGTERM is only recorded, so that the current work can end
/// cleanly; a second one terminates the process as usual. Nested objects act as one.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();  // restores the previous handlers
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The recorded signal, or 0.
  int received() const;
};

}  // namespace tamis::train
