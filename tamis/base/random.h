#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <numbers>
#include <span>
#include <utility>

namespace tamis {

/// A counter-based random generator (SplitMix64) with 64 bits of state. A stream is defined by its key, so that
/// "sequence 17 of step 4000 of seed 1" does not depend on earlier draws and a checkpoint stores no generator state.
/// Results are the same on every machine, unlike those of the standard library's distributions.
class Random {
 public:
  /// `Random({seed, step, row})`: one independent stream per key.
  Random(std::initializer_list<uint64_t> key) {
    for (const uint64_t word : key) state_ = mix(state_ + 0x9e3779b97f4a7c15u) ^ mix(word + 0xd1b54a32d192ed03u);
  }

  uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15u); }

  /// Uniform in [0, n), n > 0, without modulo bias.
  uint64_t below(uint64_t n) {
    const uint64_t reject = (0 - n) % n;  // 2^64 mod n
    uint64_t x = next();
    while (x < reject) x = next();
    return x % n;
  }

  /// Uniform in [0, 1), 53 bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

  /// Standard normal (Box-Muller).
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log1p(-uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }

  /// A uniformly random permutation (Fisher-Yates).
  template <typename T>
  void shuffle(std::span<T> items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

  uint64_t state_ = 0;
};

}  // namespace tamis
