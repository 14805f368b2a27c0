#include "tamis/bench/session.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tamis/bench/dtypes.h"

namespace tamis::bench {

Session::Session(const std::string& bench, const Options& options, std::FILE* messages)
    : options_(options),
      dtypes_(dtypes_named(options.dtypes)),
      progress_(messages),
      report_{.bench = bench, .peaks = Peaks(options.peaks)} {
  at::manual_seed(1);
}

void Session::for_each_thread_count(const std::function<void(int64_t threads)>& body) {
  const int all = at::get_num_threads();
  for (const int64_t threads : options_.threads) {
    at::set_num_threads(threads > 0 ? static_cast<int>(threads) : all);
    show("peaks of the machine");
    report_.peaks.measure(dtypes_);
    body(at::get_num_threads());
    show("peaks of the machine");
    report_.peaks.measure(dtypes_);
  }
  at::set_num_threads(all);
  progress_.clear();
}

}  // namespace tamis::bench
