#include "tamis/infer/stop_filter.h"

#include <algorithm>
#include <utility>

#include "tamis/infer/options.h"

namespace tamis::infer {
namespace {

/// Length of the longest suffix of `text` that is a proper prefix of `stop`.
size_t begun(std::string_view text, std::string_view stop) {
  size_t length = std::min(text.size(), stop.size() - 1);
  while (!text.ends_with(stop.substr(0, length))) --length;
  return length;
}

}  // namespace

StopFilter::StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {
  check_stop(stops_);
}

std::string StopFilter::push(std::string_view bytes) {
  if (stopped_) return "";
  pending_ += bytes;
  size_t show = pending_.size();
  for (const std::string& stop : stops_) show = std::min(show, pending_.find(stop));
  stopped_ = show < pending_.size();
  if (!stopped_) {
    for (const std::string& stop : stops_) show = std::min(show, pending_.size() - begun(pending_, stop));
  }
  std::string shown = pending_.substr(0, show);
  pending_ = stopped_ ? "" : pending_.substr(show);
  return shown;
}

std::string StopFilter::finish() {
  return std::exchange(pending_, {});
}

}  // namespace tamis::infer
