#include "tamis/distributed/process_mesh.h"

#include <span>
#include <vector>

#include "tamis/base/error.h"

namespace tamis::distributed {

ProcessMesh::ProcessMesh(const Launch& launch, std::chrono::milliseconds timeout, int64_t context_size)
    : all_(launch, timeout), context_size_(context_size) {
  const auto mine = static_cast<double>(context_size);
  const std::vector<double> sizes = all_.gather(std::span(&mine, 1));
  for (size_t rank = 1; rank < sizes.size(); ++rank) {
    if (sizes[rank] == sizes[0]) continue;
    fail(ExitCode::kUsage,
         "process {} has another recipe than process 0: train.context_parallel was {}, is {}; start all with the same "
         "command",
         rank, sizes[0], sizes[rank]);
  }
  if (all_.size() % context_size != 0) {
    fail(ExitCode::kUsage, "train.context_parallel = {} must divide the number of processes, but there are {}",
         context_size, all_.size());
  }
  if (context_size == 1) return;
  neighbours_.emplace(all_, context_size, "context");
  context_.emplace(*neighbours_);
}

}  // namespace tamis::distributed
