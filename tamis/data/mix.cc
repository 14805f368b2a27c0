#include "tamis/data/mix.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/base/random.h"
#include "tamis/data/streams.h"

namespace tamis::data {
namespace {

constexpr uint64_t kWhole = uint64_t{1} << 63;

/// floor(index share 2^-63), exactly.
uint64_t indices_of_share(uint64_t index, uint64_t share) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(static_cast<Wide>(index) * share >> 63);
}

}  // namespace

MixSource::MixSource(std::vector<MixPart> parts, uint64_t seed) : parts_(std::move(parts)), seed_(seed) {
  if (parts_.empty()) fail(ExitCode::kUsage, "mix: no sources; expected at least one");
  for (const MixPart& part : parts_) {
    if (!(part.weight > 0) || !std::isfinite(part.weight)) {
      fail(ExitCode::kUsage, "mix: the weight of {} must be positive and finite, but is {}", part.source->name(),
           part.weight);
    }
    total_weight_ += part.weight;
    sequential_ = sequential_ || part.source->is_sequential();
  }
  shares_.assign(parts_.size(), kWhole);
  double from_here = parts_.back().weight;  // of the parts from i on; a sum from the end loses nothing to rounding
  for (size_t i = parts_.size() - 1; i-- > 0;) {
    from_here += parts_[i].weight;
    shares_[i] = static_cast<uint64_t>(std::min(parts_[i].weight / from_here, 1.0) * 0x1p63);
  }
}

std::string MixSource::name() const {
  std::vector<std::string> names;
  for (const MixPart& part : parts_) {
    names.push_back(fmt::format("{:.3g} {}", part.weight / total_weight_, part.source->name()));
  }
  return fmt::format("mix({})", fmt::join(names, ", "));
}

MixSource::Place MixSource::place(uint64_t index) const {
  if (!sequential_) return {drawn_part(index), index};
  for (size_t part = 0;; ++part) {
    const uint64_t before = indices_of_share(index, shares_[part]);
    if (indices_of_share(index + 1, shares_[part]) > before || part + 1 == parts_.size()) return {part, before};
    index -= before;
  }
}

size_t MixSource::drawn_part(uint64_t index) const {
  double left = Random({kMixChoice, seed_, index}).uniform() * total_weight_;
  for (size_t i = 0; i + 1 < parts_.size(); ++i) {
    left -= parts_[i].weight;
    if (left < 0) return i;
  }
  return parts_.size() - 1;
}

Example MixSource::example(uint64_t index, int64_t length) const {
  const Place at = place(index);
  return parts_[at.part].source->example(at.index, length);
}

}  // namespace tamis::data
