#include "tamis/bench/options.h"

#include <algorithm>
#include <array>
#include <span>

#include "tamis/base/error.h"
#include "tamis/base/names.h"

namespace tamis::bench {
namespace {

void check_names(const char* kind, const std::vector<std::string>& names, std::span<const std::string> known) {
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw Error(ExitCode::kUsage, unknown_name(kind, name, known));
  }
}

void check_dtypes(const std::vector<std::string>& dtypes) {
  static const std::array<std::string, 3> kDtypes = {"float32", "bfloat16", "int8"};
  check_names("dtype", dtypes, kDtypes);
}

void refuse_int8(const std::vector<std::string>& dtypes) {
  if (std::find(dtypes.begin(), dtypes.end(), "int8") == dtypes.end()) return;
  fail(ExitCode::kUsage, "--dtypes: int8 is a format of weights in decoding; expected float32 or bfloat16 here");
}

void check_windows(const std::vector<std::string>& windows) {
  static const std::array<std::string, 2> kWindows = {"initial", "infinite"};
  check_names("window", windows, kWindows);
}

void check_model(const ModelBench& bench) {
  static const std::array<std::string, 2> kTrained = {"trained", "expanded"};
  if (!bench.checkpoint.empty()) return check_names("window", bench.windows, kTrained);
  check_windows(bench.windows);
  if (!bench.text.empty()) fail(ExitCode::kUsage, "--text: needs a trained model; give --checkpoint, too");
}

}  // namespace

void check_options(const TrainBench& bench) {
  check_dtypes(bench.dtypes);
  refuse_int8(bench.dtypes);
}

void check_options(const ForwardBench& bench) {
  check_dtypes(bench.dtypes);
  refuse_int8(bench.dtypes);
  check_model(bench);
}

void check_options(const DecodeBench& bench) {
  check_dtypes(bench.dtypes);
  check_model(bench);
}

}  // namespace tamis::bench
