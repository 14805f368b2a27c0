#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

namespace tamis::eval {

/// The tokens that were predicted from first + 1 to last + 1 preceding tokens of the window.
struct PositionBin {
  int64_t first = 0;  // position in the window of the last token read
  int64_t last = 0;   // inclusive
  int64_t tokens = 0;
  double loss = 0;  // nats per token
};

/// Losses by position: bin 0 holds position 0, bin b the positions [2^(b-1), 2^b).
class PositionBins {
 public:
  explicit PositionBins(int64_t window) : bins_(std::bit_width(static_cast<uint64_t>(window - 1)) + 1) {
    for (size_t b = 0; b < bins_.size(); ++b) {
      bins_[b].first = b == 0 ? 0 : int64_t{1} << (b - 1);
      bins_[b].last = std::min((int64_t{1} << b) - 1, window - 1);
    }
  }

  void add(int64_t position, double loss) {
    PositionBin& bin = bins_[std::bit_width(static_cast<uint64_t>(position))];
    bin.loss += loss;
    ++bin.tokens;
  }

  /// The tokens and the sum of losses of every bin, for another process; add_numbers adds another's.
  std::vector<double> numbers() const {
    std::vector<double> numbers;
    for (const PositionBin& bin : bins_) {
      numbers.push_back(static_cast<double>(bin.tokens));
      numbers.push_back(bin.loss);
    }
    return numbers;
  }
  void add_numbers(std::span<const double> numbers) {
    for (size_t b = 0; b < bins_.size(); ++b) {
      bins_[b].tokens += static_cast<int64_t>(numbers[2 * b]);
      bins_[b].loss += numbers[2 * b + 1];
    }
  }

  double sum() const {
    double sum = 0;
    for (const PositionBin& bin : bins_) sum += bin.loss;
    return sum;
  }

  /// The mean loss of all tokens; NaN when there are none.
  double mean() const {
    int64_t tokens = 0;
    for (const PositionBin& bin : bins_) tokens += bin.tokens;
    return sum() / static_cast<double>(tokens);
  }

  /// The bins that are not empty, with the mean loss of each.
  std::vector<PositionBin> means() const {
    std::vector<PositionBin> means;
    for (PositionBin bin : bins_) {
      if (bin.tokens == 0) continue;
      bin.loss /= static_cast<double>(bin.tokens);
      means.push_back(bin);
    }
    return means;
  }

 private:
  std::vector<PositionBin> bins_;
};

/// Losses at every position of a window.
class PositionLosses {
 public:
  explicit PositionLosses(int64_t window) : tokens_(static_cast<size_t>(window)), losses_(tokens_.size()) {}

  void add(int64_t position, double loss) {
    ++tokens_[static_cast<size_t>(position)];
    losses_[static_cast<size_t>(position)] += loss;
  }

  bool empty() const { return tokens_.empty(); }

  /// The tokens, then the losses, of every position, for another process.
  std::vector<double> numbers() const {
    std::vector<double> numbers(tokens_.begin(), tokens_.end());
    numbers.insert(numbers.end(), losses_.begin(), losses_.end());
    return numbers;
  }
  void add_numbers(std::span<const double> numbers) {
    for (size_t p = 0; p < tokens_.size(); ++p) {
      tokens_[p] += static_cast<int64_t>(numbers[p]);
      losses_[p] += numbers[tokens_.size() + p];
    }
  }

  /// Means over the positions around `points` evenly spaced ones, every position if there are as many as positions.
  /// Half of `width` positions on either side count, and fewer near the ends of the window, so that the point is the
  /// middle of first and last.
  std::vector<PositionBin> means(int64_t points, double width) const {
    const auto window = static_cast<int64_t>(tokens_.size());
    points = std::min(points, window);
    std::vector<PositionBin> means;
    for (int64_t i = 0; i < points; ++i) {
      const int64_t point = (2 * i + 1) * window / (2 * points);
      const int64_t half = std::min({static_cast<int64_t>(std::lround(width)) / 2, point, window - 1 - point});
      PositionBin bin{.first = point - half, .last = point + half};
      for (int64_t p = bin.first; p <= bin.last; ++p) {
        bin.tokens += tokens_[static_cast<size_t>(p)];
        bin.loss += losses_[static_cast<size_t>(p)];
      }
      bin.loss /= static_cast<double>(bin.tokens);
      means.push_back(bin);
    }
    return means;
  }

 private:
  std::vector<int64_t> tokens_;
  std::vector<double> losses_;
};

/// [{"first", "last", "tokens", "loss"}]
inline nlohmann::json to_json(const std::vector<PositionBin>& bins) {
  nlohmann::json list = nlohmann::json::array();
  for (const PositionBin& bin : bins) {
    list.push_back({{"first", bin.first}, {"last", bin.last}, {"tokens", bin.tokens}, {"loss", bin.loss}});
  }
  return list;
}

}  // namespace tamis::eval
