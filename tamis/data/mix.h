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

/// A weighted mixture: each index is assigned to one part, drawn with the parts' weights, and passed to that part's
/// source. Random access, like any source.
class MixSource : public Source {
 public:
  /// Throws ExitCode::kUsage when there is no part or a weight is not positive and finite.
  MixSource(std::vector<MixPart> parts, uint64_t seed);

  /// `mix(0.75 abc_digits, 0.25 plays.txt)`, with shares that add up to 1.
  std::string name() const override;
  Example example(uint64_t index, int64_t length) const override;
  /// The part that supplies example `index`.
  size_t part(uint64_t index) const;

 private:
  std::vector<MixPart> parts_;
  double total_weight_ = 0;
  uint64_t seed_;
};

}  // namespace tamis::data
