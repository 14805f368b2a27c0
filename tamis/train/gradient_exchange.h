#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tamis/distributed/process_group.h"
#include "tamis/models/model.h"

namespace tamis::train {

/// Elements [begin, end) of a parameter, in the order of its memory.
struct Piece {
  size_t parameter;
  int64_t begin, end;
};

/// How the gradients of several processes are summed.
struct Reduction {
  bool ordered = false;                  // one micro-batch after another, as a single process does: the same bits for
                                         // any number of processes, at the cost of sending every micro-batch
  at::ScalarType dtype = at::kFloat;     // of the gradients on the way; sums are float32
  int64_t bucket_elements = 1 << 22;     // sent at once, as soon as the backward pass has computed them
};

/// How the elements of all parameters are divided into buckets, and each bucket into a part for every process.
class ExchangeLayout {
 public:
  /// A piece and its place in the part of the process that owns it.
  struct Placed {
    Piece piece;
    int64_t offset;
  };
  struct Bucket {
    std::vector<std::vector<Placed>> parts;  // of each process
    int64_t part_elements = 0;               // of the longest part
    std::vector<size_t> parameters;          // with elements in it
  };

  /// `sizes`: elements of the parameters.
  ExchangeLayout(std::span<const int64_t> sizes, int64_t processes, int64_t bucket_elements);

  /// In the order in which the backward pass completes them.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  int64_t processes() const { return processes_; }
  /// Bytes that each process sends for one sum of all gradients, and for the updated parameters.
  int64_t gradient_bytes(at::ScalarType dtype) const;
  int64_t parameter_bytes() const { return gradient_bytes(at::kFloat); }

 private:
  int64_t processes_;
  std::vector<Bucket> buckets_;
};

/// Sums the gradients of data-parallel processes and distributes the update: each process owns 1/size of every bucket of
/// elements, receives the sum of their gradients, updates them, and sends them to the others. So the state of the
/// optimizer is sharded (ZeRO-1, Rajbhandari et al. 2020), and a process sends 2 (size - 1) / size times the parameters
/// in a step, as much as a ring all-reduce.
///
/// Every sum adds the processes in the order of their ranks, so that results do not depend on timing. Pieces begin at
/// multiples of kNormBlock (optimizer.h), so that the optimizer and the norms give the same bits as on whole parameters.
class GradientExchange {
 public:
  /// `group` must outlive the object. Parameters are contiguous and on the CPU.
  GradientExchange(distributed::ProcessGroup& group, std::vector<models::Parameter> parameters,
                   const Reduction& reduction);
  ~GradientExchange();
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  /// The pieces that this process owns, and views of them; a piece of a matrix keeps two dimensions.
  const std::vector<Piece>& owned() const { return owned_; }
  std::vector<models::Parameter> owned_parameters() const;

  /// Before the backward pass of a micro-batch. The gradients that it completes are sent meanwhile if this is the last
  /// micro-batch of this process in the step, or if the sum is ordered.
  void begin(bool last);
  /// After it.
  void end();
  /// After the last: waits for the sums, and makes them the gradients of `owned`, tensors as owned_parameters() gave.
  void finish(std::span<const models::Parameter> owned);
  /// Forgets the sums of a step that failed on all processes.
  void clear();

  /// The sums of squares of the gradients' blocks, for every parameter, gathered from their owners.
  std::vector<std::vector<double>> block_sums(std::span<const models::Parameter> owned);
  /// Sends the owned pieces to the other processes and receives theirs.
  void gather_parameters();

  const ExchangeLayout& layout() const { return layout_; }

 private:
  struct Bucket {
    const ExchangeLayout::Bucket* layout;
    size_t missing = 0;   // parameters without a gradient in the current backward pass
    at::Tensor from, to;  // on the way
    distributed::ProcessGroup::Pending pending;
    at::Tensor sum;  // of the own part, float32; undefined before the first
  };

  void on_gradient(size_t parameter);
  void send_ready();
  void send(Bucket& bucket);
  /// Waits for a bucket on its way and adds it to the sum.
  void add_received(Bucket& bucket);
  at::Tensor flat(const Piece& piece) const;

  distributed::ProcessGroup& group_;
  std::vector<models::Parameter> parameters_;
  Reduction reduction_;
  ExchangeLayout layout_;
  std::vector<Bucket> buckets_;
  std::vector<std::vector<size_t>> buckets_of_;  // of each parameter
  std::vector<Piece> owned_;
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(at::Tensor()));
  std::vector<Accumulator> accumulators_;  // hold the hooks
  std::vector<uintptr_t> hooks_;
  std::vector<bool> has_gradient_;
  bool sending_ = false;
  size_t next_ = 0;  // bucket to send
};

}  // namespace tamis::train
