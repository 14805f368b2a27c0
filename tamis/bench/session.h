#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "tamis/base/terminal.h"
#include "tamis/bench/options.h"
#include "tamis/bench/report.h"

namespace tamis::bench {

/// One run of a bench: sets each number of threads, shows the progress, and gathers the report.
class Session {
 public:
  /// `messages` gets the progress line. Random inputs are the same in every session.
  Session(const std::string& bench, const Options& options, std::FILE* messages);

  /// Sets each number of threads in turn, measures the machine's peaks, calls `body(threads)`, and measures them again.
  void for_each_thread_count(const std::function<void(int64_t threads)>& body);

  /// Shows the present step.
  void show(const std::string& doing) { progress_.update("bench " + report_.bench + ": " + doing); }

  const Options& options() const { return options_; }
  const std::vector<at::ScalarType>& dtypes() const { return dtypes_; }
  Report& report() { return report_; }

 private:
  Options options_;
  std::vector<at::ScalarType> dtypes_;
  ProgressLine progress_;
  Report report_;
};

}  // namespace tamis::bench
