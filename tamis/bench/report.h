#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tamis/bench/measure.h"
#include "tamis/bench/peaks.h"

namespace tamis::bench {

/// Time relative to that of a known work, in interleaved calls.
struct Ratio {
  double value = 0;
  std::string to;  // "SDPA"
};

/// One figure.
struct Row {
  std::string what;
  at::ScalarType dtype = at::kFloat;
  int64_t threads = 0;
  int64_t tokens = 0;  // length of a sequence, or depth of the context
  int64_t batch = 1;   // sequences
  Measurement time;
  double tokens_per_call = 0;
  double flops = 0;                  // of a call, counted; 0: not counted
  double bytes = 0;                  // that a call has to read; 0: not counted
  std::optional<double> error = {};  // largest relative error against the definition; a peer has none
  std::optional<Ratio> ratio = {};
  nlohmann::json details = nlohmann::json::object();  // of this bench alone, for the JSON
};

/// The results of a bench.
struct Report {
  std::string bench;                                  // "train"
  nlohmann::json options = nlohmann::json::object();  // sizes that all rows share
  Peaks peaks;
  std::vector<Row> rows = {};
  std::vector<std::string> notes = {};  // lines below the table
};

/// {"bench", "tamis", "date", "machine", "options", "peaks", "rows", "notes"}; docs/bench.md has the keys of a row.
nlohmann::json to_json(const Report& report);

/// An aligned table; columns that no row fills are left out. `colour` paints the shares of the peaks.
std::string to_table(const Report& report, bool colour);

}  // namespace tamis::bench
