#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "tamis/distributed/context_group.h"
#include "tamis/distributed/process_group.h"

namespace tamis::distributed {

/// The processes of a run in rows of `context_size` neighbours that share sequences (context parallelism). The rows
/// divide the sequences of a batch (data parallelism).
class ProcessMesh {
 public:
  /// Throws ExitCode::kUsage when `context_size` differs between the processes or does not divide their number.
  explicit ProcessMesh(std::unique_ptr<ProcessGroup> all, int64_t context_size = 1);

  ProcessGroup& all() { return *all_; }
  /// The processes that share sequences with this one; null when none do.
  ContextGroup* context() { return context_ ? &*context_ : nullptr; }

  /// Of the tensors that this process has sent (ProcessGroup::bytes_sent).
  int64_t bytes_sent() const { return all_->bytes_sent() + (neighbours_ ? neighbours_->bytes_sent() : 0); }

  /// The number of processes, this one included, that may run on the same cores.
  int64_t sharing_cores() const { return sharing_cores_; }
  /// A text that is the same in all processes and different in every start.
  const std::string& token() const { return token_; }

  int64_t context_size() const { return context_size_; }
  int64_t context_rank() const { return all_->rank() % context_size_; }
  int64_t rows() const { return all_->size() / context_size_; }
  int64_t row() const { return all_->rank() / context_size_; }

 private:
  std::unique_ptr<ProcessGroup> all_;
  int64_t context_size_;
  int64_t sharing_cores_ = 1;
  std::string token_;
  std::optional<ProcessGroup> neighbours_;
  std::optional<ContextGroup> context_;
};

}  // namespace tamis::distributed
