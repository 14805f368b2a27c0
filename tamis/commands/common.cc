#include "tamis/commands/common.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <memory>

#include "tamis/base/error.h"
#include "tamis/base/terminal.h"
#include "tamis/models/checkpoint.h"

namespace tamis::commands {

at::Device start(const RunOptions& options) {
  if (options.threads > 0) at::set_num_threads(static_cast<int>(options.threads));
  if (options.device == "cpu") return at::kCPU;
  if (!at::hasCUDA()) {
    fail(ExitCode::kUsage, "--device cuda: this build of LibTorch has no CUDA or sees no GPU; use --device cpu");
  }
  return at::kCUDA;
}

nlohmann::json model_changes(const RunOptions& options) {
  return models::read_changes(options.model_changes);
}

std::string to_line(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::function<void(double done, double total)> progress_with_eta(const std::string& what) {
  const std::shared_ptr<ProgressLine> line(new ProgressLine(stderr), [](ProgressLine* ended) {
    ended->clear();
    delete ended;
  });
  return [line, what, begun = now_seconds()](double done, double total) {
    const double left = (now_seconds() - begun) * (total - done) / done;
    line->update(fmt::format("{} {} {:3.0f}%  {} left", what, progress_bar(done, total), 100 * done / total,
                             format_duration(left)));
  };
}

}  // namespace tamis::commands
