#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tamis/data/source.h"

namespace tamis::data {

/// A source and its sampling weight relative to the others.
struct MixPart {
  std::unique_ptr<Source> source;
  double weight = 1.0;
};

/// A weighted mixture: each index is assigned to one part. Random access, like any source.
///
/// Without sequential sources the part is drawn with the parts' weights, and its source gets the same index. With one
/// the parts are interleaved evenly instead, and each source gets the number of earlier indices of its part, so that an
/// epoch of a sequential source is an epoch in a mixture too. With shares p_0, p_1, ... of the parts, part 0 has the
/// indices n at which floor(n p_0) increases; the others have the remaining indices, in the same way. Among the first n
/// indices a part has its share of n within a number of indices that is below the number of parts.
class MixSource : public Source {
 public:
  /// Throws ExitCode::kUsage when there is no part or a weight is not positive and finite.
  MixSource(std::vector<MixPart> parts, uint64_t seed);

  /// `mix(0.75 abc_digits, 0.25 plays.txt)`, with shares that add up to 1.
  std::string name() const override;
  Example example(uint64_t index, int64_t length) const override;
  bool is_sequential() const override { return sequential_; }
  /// Only of a mixture of one source.
  std::optional<uint64_t> examples_per_epoch(int64_t length) const override {
    return parts_.size() == 1 ? parts_[0].source->examples_per_epoch(length) : std::nullopt;
  }

  /// The part that supplies an example, and the index that its source gets.
  struct Place {
    size_t part;
    uint64_t index;
  };
  Place place(uint64_t index) const;
  /// The part that supplies example `index`.
  size_t part(uint64_t index) const { return place(index).part; }

 private:
  size_t drawn_part(uint64_t index) const;

  std::vector<MixPart> parts_;
  double total_weight_ = 0;
  uint64_t seed_;
  bool sequential_ = false;
  std::vector<uint64_t> shares_;  // of part i among the parts from i on, in units of 2^-63; 2^63 for the last
};

}  // namespace tamis::data
