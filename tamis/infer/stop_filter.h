#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tamis::infer {

/// Ends a text before the first stop string in it, although the text arrives in pieces: what may be the beginning of a
/// stop string is held back.
class StopFilter {
 public:
  /// Throws ExitCode::kUsage when a stop string is empty.
  explicit StopFilter(std::vector<std::string> stops);

  /// What can be shown now. Nothing more is, once a stop string was met.
  std::string push(std::string_view bytes);
  /// What was held back, as no more is to come.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string pending_;
  bool stopped_ = false;
};

}  // namespace tamis::infer
