#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>

#include "tamis/ops/parallel.h"

namespace tamis::ops {

/// Work in phases on ATen's threads, for phases of a few microseconds: each needs what all of the phase before wrote.
///
///   parallel_team(team_shares(items), [&](TeamMember& member) {
///     member.phase(items_of_share, work);   // work(item) for every item once, by whichever thread
///     member.phase(...);                    // begins when all items before are done
///   });
///
/// A phase's items are dealt out in shares, one for each thread, so that a thread walks through memory in order; who is
/// done with its own takes what others have left. A thread that lost its core therefore holds up only the item that it
/// is at: on a busy machine the others go on without it. Every member must go through the same phases.
class TeamWork {
 public:
  static constexpr int64_t kMostShares = 64;

  explicit TeamWork(int64_t shares) : shares_(shares) {}
  int64_t shares() const { return shares_; }

  /// The next of `count` items of a share in a phase, counted from 0; -1 when none is left.
  int64_t take(int64_t share, uint64_t phase, int64_t count) {
    std::atomic<uint64_t>& next = taken_[share].phase_and_items;
    uint64_t before = next.load(std::memory_order_relaxed);
    while (true) {
      const uint64_t at = before >> 32;
      const auto item = at == phase ? static_cast<int64_t>(before & 0xffffffffu) : 0;
      if (at > phase || item >= count) return -1;
      const uint64_t after = phase << 32 | static_cast<uint64_t>(item + 1);
      if (next.compare_exchange_weak(before, after, std::memory_order_relaxed)) return item;
    }
  }

  /// A member will not do its items: nobody waits for them, and what the others make is worth nothing. True for the
  /// first that says so.
  bool fail() { return !failed_.exchange(true, std::memory_order_acq_rel); }

  /// `items` were done: what this thread wrote is there for those who wait.
  void publish(int64_t items) { done_.fetch_add(items, std::memory_order_acq_rel); }

  /// Waits until that many items were done since the beginning.
  void wait(int64_t items) const {
    constexpr int kPatience = 4000;  // some tens of microseconds: then another thread may need the core
    for (int spins = 0; done_.load(std::memory_order_acquire) < items; ++spins) {
      if (failed_.load(std::memory_order_acquire)) return;
      if (spins < kPatience) {
        pause();
      } else {
        std::this_thread::yield();
      }
    }
  }

 private:
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  struct alignas(64) Taken {
    std::atomic<uint64_t> phase_and_items{0};
  };

  int64_t shares_;
  alignas(64) std::atomic<int64_t> done_{0};
  std::atomic<bool> failed_{false};
  std::array<Taken, kMostShares> taken_;
};

/// A thread of the team.
class TeamMember {
 public:
  TeamMember(TeamWork& team, int64_t share) : team_(team), share_(share) {}

  int64_t share() const { return share_; }

  /// Share s of the phase has the items [first_item(s), first_item(s + 1)).
  template <typename FirstItem, typename Work>
  void phase(const FirstItem& first_item, const Work& work) {
    ++phase_;
    for (int64_t i = 0; i < team_.shares(); ++i) {
      const int64_t share = (share_ + i) % team_.shares();
      const int64_t first = first_item(share), count = first_item(share + 1) - first;
      int64_t done = 0;
      for (int64_t item = team_.take(share, phase_, count); item >= 0; item = team_.take(share, phase_, count)) {
        work(first + item);
        ++done;
      }
      if (done > 0) team_.publish(done);
    }
    items_ += first_item(team_.shares());
    team_.wait(items_);
  }

  /// The same after `prepare()`, once for each member that gets an item: when it has none, others may be far ahead.
  template <typename FirstItem, typename Prepare, typename Work>
  void phase(const FirstItem& first_item, const Prepare& prepare, const Work& work) {
    bool prepared = false;
    phase(first_item, [&](int64_t item) {
      if (!prepared) prepare();
      prepared = true;
      work(item);
    });
  }

 private:
  TeamWork& team_;
  int64_t share_;
  uint64_t phase_ = 0;
  int64_t items_ = 0;  // of all phases so far
};

/// Calls `work(member)` on `shares` of ATen's threads, at most TeamWork::kMostShares. What a member throws first
/// (memory may be short) is thrown here, once the others have run through their phases without it.
template <typename Work>
void parallel_team(int64_t shares, const Work& work) {
  TeamWork team(shares);
  std::exception_ptr failure;
  const auto join = [&](int64_t first, int64_t) {
    order::acquire(&order::fork);
    TeamMember member(team, first);
    try {
      work(member);
    } catch (...) {
      if (team.fail()) failure = std::current_exception();
    }
    order::release(&team);
  };
  order::release(&order::fork);
  at::parallel_for(0, shares, 1, join);
  order::acquire(&team);
  if (failure) std::rethrow_exception(failure);
}

/// Shares that are worth making of work with this many items in a phase.
inline int64_t team_shares(int64_t items) {
  return std::clamp<int64_t>(at::get_num_threads(), 1, std::min(items, TeamWork::kMostShares));
}

}  // namespace tamis::ops
