#include "tamis/threads/region.h"

#include <algorithm>

namespace tamis::threads {

void Region::barrier() {
  const uint32_t passed = barriers_.value();
  if (arrived_.fetch_add(1) + 1 < workers_) {
    need_workers();
    return barriers_.wait_for_change(passed);
  }
  arrived_.store(0);
  barriers_.advance();
}

Loop* Region::enter(uint64_t number, const LoopBounds& bounds) {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(loops_.begin(), loops_.end(), [&](const auto& loop) { return loop->number == number; });
  if (found != loops_.end()) return found->get();
  loops_.push_back(std::make_unique<Loop>(Loop{.number = number, .left = bounds, .workers_left = workers_}));
  return loops_.back().get();
}

int64_t Region::take(Loop* loop, long* first, long* end) {  // NOLINT(google-runtime-int)
  const std::lock_guard lock(mutex_);
  LoopBounds& left = loop->left;
  const auto distance = left.end - left.first;
  if (left.step > 0 ? distance <= 0 : distance >= 0) return -1;
  const auto length = left.step * left.chunk;
  *first = left.first;
  *end = left.step > 0 ? left.first + std::min(length, distance) : left.first + std::max(length, distance);
  left.first = *end;
  return loop->taken++;
}

void Region::leave(Loop* loop) {
  const std::lock_guard lock(mutex_);
  if (--loop->workers_left > 0) return;
  std::erase_if(loops_, [&](const auto& other) { return other.get() == loop; });
}

void Region::wait_for_turn(Loop* loop, int64_t chunk) {
  std::unique_lock lock(mutex_);
  turn_.wait(lock, [&] { return loop->turn == chunk; });
}

void Region::end_turn(Loop* loop, int64_t chunk) {
  wait_for_turn(loop, chunk);
  const std::lock_guard lock(mutex_);
  ++loop->turn;
  turn_.notify_all();
}

}  // namespace tamis::threads
