#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tamis::infer {

/// Cuts a text that arrives in pieces before its first stop string. The end of a piece is kept back while it may be the
/// beginning of a stop string.
class StopFilter {
 public:
  /// Throws ExitCode::kUsage when a stop string is empty.
  explicit StopFilter(std::vector<std::string> stops);

  /// Adds a piece and returns the text that is now known to precede any stop string; empty after a stop string.
  std::string push(std::string_view bytes);
  /// Returns the text that was kept back; to be called after the last piece.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string pending_;
  bool stopped_ = false;
};

}  // namespace tamis::infer
