#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace tamis::ops {

/// Calls `work(item)` once for every item in [0, items), on ATen's threads, in no fixed order: each thread takes the
/// next item when it is done with one. Results must not depend on who does which item. The first exception is rethrown.
template <typename Work>
void parallel_items(int64_t items, const Work& work) {
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr failure;
  const int64_t threads = std::min<int64_t>(items, at::get_num_threads());
  // ThreadSanitizer does not see libgomp's fork and join: tell it what they order.
  [[maybe_unused]] const auto acquire = [&] {
#if defined(__SANITIZE_THREAD__)
    __tsan_acquire(&next);
#endif
  };
  [[maybe_unused]] const auto release = [&] {
#if defined(__SANITIZE_THREAD__)
    __tsan_release(&next);
#endif
  };
  release();
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    acquire();
    try {
      for (int64_t item = next.fetch_add(1); item < items && !failed; item = next.fetch_add(1)) work(item);
    } catch (...) {
      if (!failed.exchange(true)) failure = std::current_exception();
    }
    release();
  });
  acquire();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tamis::ops
