#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "tamis/bench/options.h"
#include "tamis/distributed/process_group.h"

namespace tamis::bench {

struct NetworkBench {
  int64_t megabytes = 16;  // that each process divides among all in a measured exchange; about a bucket of gradients
  MeasureOptions measure;
};

/// What `tamis plan` has to know of the network between processes.
struct NetworkSpeed {
  int64_t processes = 0;
  std::string launcher;         // "torchrun", "srun", ...; empty where it is not known
  int64_t exchanged = 0;        // bytes that each process sends in an exchange
  double exchange_seconds = 0;  // of an exchange, the median of the slowest process
  double latency = 0;           // seconds of a message: of an exchange of 4 bytes with each other process, likewise

  /// Bytes per second of each process in each direction.
  double bandwidth() const;
};

/// Exchanges tensors among all processes as training exchanges gradients (all-to-all), large ones and ones of a single
/// number, and first checks that what comes is what was sent: throws ExitCode::kRuntime if it is not. All processes get
/// the same result. Throws as ProcessGroup when one is lost. Memory: 2 `megabytes`.
NetworkSpeed measure_network(const NetworkBench& bench, distributed::ProcessGroup& group);

/// {"bench": "network", "processes", "launcher", "exchanged_bytes", "exchange_seconds", "bytes_per_second",
/// "latency_seconds"}
nlohmann::json to_json(const NetworkSpeed& speed);

/// A few lines, the last of them the options of `tamis plan`.
std::string to_text(const NetworkSpeed& speed);

}  // namespace tamis::bench
