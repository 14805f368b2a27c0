#pragma once

#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tamis/base/process.h"
#include "tamis/base/testing.h"
#include "tamis/distributed/process_group.h"

namespace tamis::distributed::testing {

/// Calls `work` in `size` threads, each with a process group of its own; rethrows the first error. Signals are handled
/// as in the program, so that sending to a process that has left is an error and not SIGPIPE.
inline void in_processes(int64_t size, const std::function<void(ProcessGroup&)>& work) {
  protect_process();
  const tamis::testing::TemporaryDirectory directory;
  std::vector<std::exception_ptr> errors(size);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ProcessGroup group({.rank = rank,
                            .size = size,
                            .local_rank = rank,
                            .local_size = size,
                            .rendezvous = "file://" + (directory.path() / "meet").string()},
                           std::chrono::seconds(60));
        work(group);
        group.barrier();
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace tamis::distributed::testing
