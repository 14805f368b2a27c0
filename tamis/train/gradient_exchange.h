#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
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
  bool ordered = false;               // one micro-batch after another, as a single process does: the same bits for
                                      // any number of processes, at the cost of sending every micro-batch
  at::ScalarType dtype = at::kFloat;  // of the gradients on the way; sums are float32
  int64_t bucket_elements = 0;        // sent at once, as soon as the backward pass has computed them; 0: 4M,
                                      // and more for more than 32 processes
  bool sharded = false;               // the processes hold only their pieces of matrices (ZeRO-3): those of a layer
                                      // are gathered for its forward and its backward pass; every micro-batch is sent
};

/// What is gathered and freed together when parameters are sharded: the matrices of layer l are unit l, those outside
/// of the layers kOutside. Everything that is not a matrix is kept whole.
inline constexpr int64_t kOutside = -1;
inline constexpr int64_t kWhole = -2;

/// The unit of every parameter. `sharded` false: kWhole.
std::vector<int64_t> units_of(std::span<const models::Parameter> parameters, bool sharded);

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
    int64_t unit = kWhole;
  };

  /// `sizes`: elements of the parameters; `units`: as units_of gives them. No bucket has elements of several units.
  /// `bucket_elements`: as in Reduction.
  ExchangeLayout(std::span<const int64_t> sizes, std::span<const int64_t> units, int64_t processes,
                 int64_t bucket_elements);

  /// In the order in which the backward pass completes them.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  int64_t processes() const { return processes_; }
  /// Bytes that each process sends for one sum of all gradients.
  int64_t gradient_bytes(at::ScalarType dtype) const;
  /// Bytes that each process sends so that all have the parameters that a step needs: those that are kept whole once,
  /// after their update; those outside of the layers once for each of its `passes`, and those of layers twice.
  int64_t parameter_bytes(int64_t passes = 1) const;
  /// Into how many gathers these are divided.
  int64_t gathers(int64_t passes = 1) const;

 private:
  int64_t processes_;
  std::vector<Bucket> buckets_;
};

/// Sums the gradients of data-parallel processes and distributes the update: each process owns 1/size of every bucket
/// of elements, receives the sum of their gradients, updates them, and sends them to the others. So the state of the
/// optimizer is sharded (ZeRO-1, Rajbhandari et al. 2020), and a process sends 2 (size - 1) / size times the parameters
/// in a step, as much as a ring all-reduce, and at most an eighth more for padding, if it owns eight blocks or more of
/// a bucket.
///
/// Every sum adds the processes in the order of their ranks, so that results do not depend on timing. Pieces begin at
/// multiples of kNormBlock (optimizer.h), so that the optimizer and the norms give the same bits as on whole
/// parameters.
///
/// With Reduction::sharded the elements of matrices exist only in the process that owns them, apart from the units that
/// are gathered: of a layer from before() to after(), or to the end of its backward pass; outside of layers between
/// gather(kOutside) and release(kOutside).
class GradientExchange final : public models::LayerGuard {
 public:
  /// `group` must outlive the object. Parameters are contiguous and on one device.
  GradientExchange(distributed::ProcessGroup& group, std::vector<models::Parameter> parameters,
                   const Reduction& reduction);
  ~GradientExchange() override;
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  /// The pieces that this process owns, and views of them; a piece of a matrix keeps two dimensions.
  const std::vector<Piece>& owned() const { return owned_; }
  std::vector<models::Parameter> owned_parameters() const;

  bool sharded() const { return reduction_.sharded; }
  void before(int64_t layer) override { gather(layer); }
  void after(int64_t layer) override { release(layer); }
  /// Makes the parameters of a unit whole; all processes call it. No effect on what is whole.
  void gather(int64_t unit);
  void release(int64_t unit);
  /// Calls `work` with the indices of the parameters of one unit after the other, while these are whole; all processes
  /// call it.
  void for_each_unit(const std::function<void(const std::vector<size_t>& parameters)>& work);
  void gather_all();
  void release_all();
  /// Gathers and releases layer by layer, for a process that has nothing to compute while the others run the model
  /// without a backward pass.
  void take_part();

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
    at::Tensor values;   // of the own part, if sharded
    size_t missing = 0;  // parameters without a gradient in the current backward pass
    struct OnTheWay {
      at::Tensor from, to;
      distributed::ProcessGroup::Pending pending;
    };
    OnTheWay gradients, parameters;
    at::Tensor sum;  // of the own part, float32; undefined before the first
  };

  /// Starts to send the own values and to receive the others'.
  void start_gather(Bucket& bucket);
  void finish_gather(Bucket& bucket);
  void on_gradient(size_t parameter);
  void send_ready();
  void send(Bucket& bucket);
  /// Waits for a bucket on its way and adds it to the sum.
  void add_received(Bucket& bucket);
  at::Tensor flat(const Piece& piece) const;
  /// float32, on the device of the parameters.
  at::Tensor zeros(int64_t elements) const;

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
  std::set<int64_t> gathered_;  // units, of sharded parameters
  bool sending_ = false;
  size_t next_ = 0;  // bucket to send
};

}  // namespace tamis::train
