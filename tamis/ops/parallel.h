#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tamis::ops {

/// ThreadSanitizer does not see libgomp's fork and join: everything before release happens before what follows acquire.
namespace order {
#if defined(__SANITIZE_THREAD__)
inline char fork;  // of every call: a thread must acquire before it reads anything of its caller, even an address
inline void acquire(void* object) {
  __tsan_acquire(object);
}
inline void release(void* object) {
  __tsan_release(object);
}
#else
inline constexpr char fork = 0;
inline void acquire(const void*) {}
inline void release(const void*) {}
#endif
}  // namespace order

/// During its lifetime this thread treats subnormal numbers, in float32 those below 1.2e-38, as zeros. Weights of keys
/// far back may be subnormal, and an Intel processor is slow with such numbers: stick-breaking over 4,096 tokens took 8
/// times as long on an Emerald Rapids. Only on x86.
class FlushedSubnormals {
 public:
  FlushedSubnormals(const FlushedSubnormals&) = delete;
  FlushedSubnormals& operator=(const FlushedSubnormals&) = delete;
#if defined(__x86_64__)
  FlushedSubnormals() : before_(_mm_getcsr()) {
    _mm_setcsr(before_ | kResults | kOperands);
  }
  ~FlushedSubnormals() {
    _mm_setcsr(before_);
  }

 private:
  static constexpr unsigned kResults = 0x8000, kOperands = 0x0040;
  unsigned before_;
#else
  FlushedSubnormals() {}
  ~FlushedSubnormals() {}
#endif
};

/// Calls `work(item)` once for every item in [0, items) on ATen's threads, in no fixed order: a thread takes the next
/// item when it has finished one. Subnormal numbers count as zeros there. Results must not depend on the thread of an
/// item. The first exception is rethrown.
template <typename Work>
void parallel_items(int64_t items, const Work& work) {
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr failure;
  const int64_t threads = std::min<int64_t>(items, at::get_num_threads());
  const auto take_items = [&](int64_t, int64_t) {
    order::acquire(&order::fork);
    const FlushedSubnormals flushed;
    try {
      for (int64_t item = next.fetch_add(1); item < items && !failed; item = next.fetch_add(1)) work(item);
    } catch (...) {
      if (!failed.exchange(true)) failure = std::current_exception();
    }
    order::release(&next);
  };
  order::release(&order::fork);
  at::parallel_for(0, threads, 1, take_items);
  order::acquire(&next);
  if (failure) std::rethrow_exception(failure);
}

/// The same on this thread, in order, for work that is over before other threads have started.
template <typename Work>
void serial_items(int64_t items, const Work& work) {
  const FlushedSubnormals flushed;
  for (int64_t item = 0; item < items; ++item) work(item);
}

/// Calls `work(first, last)` for chunks of [0, size), one for each thread, or fewer if they would be shorter than
/// `least`, which is at least 1.
template <typename Work>
void parallel_chunks(int64_t size, int64_t least, const Work& work) {
  const int64_t chunks = std::clamp<int64_t>(size / least, 1, at::get_num_threads());
  parallel_items(size > 0 ? chunks : 0, [&](int64_t item) { work(size * item / chunks, size * (item + 1) / chunks); });
}

constexpr int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
constexpr int64_t round_up(int64_t a, int64_t multiple) {
  return divide_up(a, multiple) * multiple;
}

/// During its lifetime libraries plan the products of this thread for a single thread. In a parallel region they run on
/// one anyway, but oneDNN divides sums by omp_get_max_threads(). ATen sets that number at its first call in a thread:
/// here.
class PlannedForOneThread {
 public:
  PlannedForOneThread() : before_(at::get_num_threads()) { omp_set_num_threads(1); }
  ~PlannedForOneThread() { omp_set_num_threads(before_); }
  PlannedForOneThread(const PlannedForOneThread&) = delete;
  PlannedForOneThread& operator=(const PlannedForOneThread&) = delete;

 private:
  int before_;
};

/// Runs `work(item)` on ATen's threads, and every product in it on the thread that calls it. ATen would run a single
/// item outside of a parallel region, where the BLAS uses all threads and its bits depend on their number: hence two.
template <typename Work>
void parallel_gemms(int64_t items, const Work& work) {
  parallel_items(std::max<int64_t>(items, 2), [&](int64_t item) {
    if (item >= items) return;
    const PlannedForOneThread one;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;  // not inherited by other threads
    work(item);
  });
}

}  // namespace tamis::ops
