#include "tamis/data/mix.h"

#include <fmt/ranges.h>

#include <cmath>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/base/random.h"
#include "tamis/data/streams.h"

namespace tamis::data {

MixSource::MixSource(std::vector<MixPart> parts, uint64_t seed) : parts_(std::move(parts)), seed_(seed) {
  if (parts_.empty()) fail(ExitCode::kUsage, "mix: no sources; expected at least one");
  for (const MixPart& part : parts_) {
    if (!(part.weight > 0) || !std::isfinite(part.weight)) {
      fail(ExitCode::kUsage, "mix: the weight of {} must be positive and finite, but is {}", part.source->name(),
           part.weight);
    }
    total_weight_ += part.weight;
  }
}

std::string MixSource::name() const {
  std::vector<std::string> names;
  for (const MixPart& part : parts_) {
    names.push_back(fmt::format("{:.3g} {}", part.weight / total_weight_, part.source->name()));
  }
  return fmt::format("mix({})", fmt::join(names, ", "));
}

size_t MixSource::part(uint64_t index) const {
  double left = Random({kMixChoice, seed_, index}).uniform() * total_weight_;
  for (size_t i = 0; i + 1 < parts_.size(); ++i) {
    left -= parts_[i].weight;
    if (left < 0) return i;
  }
  return parts_.size() - 1;
}

Example MixSource::example(uint64_t index, int64_t length) const {
  return parts_[part(index)].source->example(index, length);
}

}  // namespace tamis::data
