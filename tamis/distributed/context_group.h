#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "tamis/distributed/process_group.h"

namespace tamis::distributed {

/// The halo of a head that needs all keys before the process's own tokens.
inline constexpr int64_t kAllKeys = INT64_MAX;

/// Context parallelism: the processes of a group share every sequence. Process r holds its tokens [r T, (r + 1) T).
/// Heads that see only the last w tokens need ceil(w) - 1 rows of the processes before; all others need all rows, and
/// recurrent mixers the state at the end of the process before.
class ContextGroup {
 public:
  explicit ContextGroup(ProcessGroup& group) : group_(group) {}
  /// Waits until what was sent has been received, unless an error ends the work.
  ~ContextGroup();
  ContextGroup(const ContextGroup&) = delete;
  ContextGroup& operator=(const ContextGroup&) = delete;

  int64_t rank() const { return group_.rank(); }
  int64_t size() const { return group_.size(); }
  ProcessGroup& group() { return group_; }

  /// Rows [start - M, start + T) of x_BTHC, where [start, start + T) are this process's own and M is the largest of the
  /// halos or `start`, whichever is less. Head h has the values of the halos[h] rows before `start`, and 0 further
  /// left. Differentiable; every process calls it with the same halos, and takes part in its backward pass. Gradients
  /// are summed in float32 at least, and rounded once. It waits for the rows that it needs, not until others have
  /// received theirs, so a process may be a few layers ahead of the next.
  at::Tensor with_left(const at::Tensor& x_BTHC, const std::vector<int64_t>& halos);

  /// M of with_left for a process with `tokens` tokens.
  static int64_t left_rows(std::span<const int64_t> halos, int64_t rank, int64_t tokens);
  /// Rows of all heads that process `rank` sends in with_left, and those that it receives, whose gradients it sends.
  static int64_t rows_sent(std::span<const int64_t> halos, int64_t rank, int64_t size, int64_t tokens);
  static int64_t rows_received(std::span<const int64_t> halos, int64_t rank, int64_t tokens);

  /// The tensors that the process before gives to to_right(); for the first process the given zeros. Differentiable:
  /// the backward pass of `anchor`, any tensor of the same computation that requires a gradient, sends theirs.
  std::vector<at::Tensor> from_left(const std::vector<at::Tensor>& zeros, const at::Tensor& anchor);
  /// Gives the tensors to the next process. Returns 0, which must be added to the loss, so that the backward pass
  /// waits for their gradients.
  at::Tensor to_right(const std::vector<at::Tensor>& tensors);

  /// Sends a tensor that stays unchanged; keeps the last 4 size() that were sent, and waits for those before.
  void send_later(const at::Tensor& tensor, int64_t rank);

 private:
  ProcessGroup& group_;
  std::deque<ProcessGroup::Pending> sending_;
};

}  // namespace tamis::distributed
