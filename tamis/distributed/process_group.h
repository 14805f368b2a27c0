#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tamis/distributed/launch.h"

namespace tamis::distributed {

/// The processes of a run, joined by c10d with Gloo. All processes call the same functions in the same order. When one
/// is lost, or does not answer within the time-out, the others throw ExitCode::kLostProcess. Tensors of other devices
/// than the CPU go through its memory: sending waits for what computes them, and Pending::wait copies what has come.
class ProcessGroup {
 public:
  /// Waits until all processes have joined, `meeting_timeout` at most, which is by default `timeout`. Throws
  /// ExitCode::kLostProcess when they do not, ExitCode::kUsage when one has another version.
  ProcessGroup(const Launch& launch, std::chrono::milliseconds timeout,
               std::optional<std::chrono::milliseconds> meeting_timeout = std::nullopt);
  /// The part of `all` with `size` adjacent processes to which this one belongs. `size` divides all.size(); `name`
  /// distinguishes several divisions of the same processes.
  ProcessGroup(const ProcessGroup& all, int64_t size, const std::string& name);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int64_t rank() const { return launch_.rank; }
  int64_t size() const { return launch_.size; }
  const Launch& launch() const { return launch_; }
  /// How long an operation waits for another process.
  std::chrono::milliseconds timeout() const { return timeout_; }

  /// A collective operation that may still be running.
  class Pending {
   public:
    Pending();
    Pending(Pending&&) noexcept;
    Pending& operator=(Pending&&) noexcept;
    ~Pending();
    void wait();

   private:
    friend class ProcessGroup;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  /// Part r of `from` goes to process r, and part r of `to` comes from there. Both are contiguous, with size() parts of
  /// equal length, and stay unchanged until Pending::wait.
  Pending all_to_all(const at::Tensor& to, const at::Tensor& from);
  /// The same with parts of different lengths, in elements; the others' counts must fit.
  Pending all_to_all(const at::Tensor& to, const at::Tensor& from, std::vector<int64_t> to_counts,
                     std::vector<int64_t> from_counts);
  /// Part r of `to` becomes the `from` of process r.
  Pending all_gather(const at::Tensor& to, const at::Tensor& from);

  /// A contiguous tensor from one process to another, which receives it into one of the same size. Messages between two
  /// processes arrive in the order in which they were sent.
  void send(const at::Tensor& tensor, int64_t rank) { start_send(tensor, rank).wait(); }
  /// The same without waiting until the other process has it; the tensor stays unchanged until Pending::wait.
  Pending start_send(const at::Tensor& tensor, int64_t rank);
  void receive(const at::Tensor& tensor, int64_t rank);

  /// The values of all processes, in the order of their ranks; every process gives equally many.
  std::vector<double> gather(std::span<const double> values);
  /// The texts of all processes, in the order of their ranks.
  std::vector<std::string> gather(const std::string& text);
  /// The text of process 0.
  std::string broadcast(const std::string& text);
  /// Returns when all processes have called it.
  void barrier();

  /// Bytes of the tensors that this process has sent, without those of gather, broadcast and barrier.
  int64_t bytes_sent() const { return bytes_sent_; }

 private:
  struct Impl;
  /// Calls `work` and turns what c10d throws into an Error.
  template <typename Work>
  auto checked(const Work& work) const;
  /// The operation that start(to, from) begins, and returns as c10d's; `to` may be undefined.
  template <typename Start>
  Pending begin(const at::Tensor& to, const at::Tensor& from, const Start& start) const;
  /// [size, numbers]: all_gather that is not counted in bytes_sent.
  at::Tensor gathered(const at::Tensor& from) const;

  Launch launch_;
  std::chrono::milliseconds timeout_;
  std::unique_ptr<Impl> impl_;
  int64_t bytes_sent_ = 0;
};

}  // namespace tamis::distributed
