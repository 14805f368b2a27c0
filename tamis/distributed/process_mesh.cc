#include "tamis/distributed/process_mesh.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>
#include <vector>

#include "tamis/base/cores.h"
#include "tamis/base/error.h"

namespace tamis::distributed {

ProcessMesh::ProcessMesh(std::unique_ptr<ProcessGroup> all, int64_t context_size)
    : all_(std::move(all)), context_size_(context_size) {
  const auto mine = static_cast<double>(context_size);
  const std::vector<double> sizes = all_->gather(std::span(&mine, 1));
  for (size_t rank = 1; rank < sizes.size(); ++rank) {
    if (sizes[rank] == sizes[0]) continue;
    fail(ExitCode::kUsage,
         "process {} has another recipe than process 0: train.context_parallel is {}, not {}; start all with the same "
         "command",
         rank, sizes[rank], sizes[0]);
  }
  if (all_->size() % context_size != 0) {
    fail(ExitCode::kUsage, "train.context_parallel = {} must divide the number of processes, but there are {}",
         context_size, all_->size());
  }
  const std::vector<std::string> cores = all_->gather(core_set());
  sharing_cores_ = std::ranges::count(cores, cores[all_->rank()]);
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  token_ = all_->broadcast(fmt::format("{}-{}", getpid(), now));
  if (context_size == 1) return;
  neighbours_.emplace(*all_, context_size, "context");
  context_.emplace(*neighbours_);
}

}  // namespace tamis::distributed
