#pragma once

#include <cstdio>

#include "tamis/bench/options.h"
#include "tamis/bench/report.h"

namespace tamis::bench {

/// Every bench first compares the same work on a short sequence with its definition in float64 and throws
/// ExitCode::kRuntime when they differ; then it measures. Throws what check_options throws. Progress goes to
/// `messages`.
Report run(const TrainBench& bench, std::FILE* messages);
Report run(const ForwardBench& bench, std::FILE* messages);
Report run(const DecodeBench& bench, std::FILE* messages);

}  // namespace tamis::bench
