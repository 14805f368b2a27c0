#include "tamis/data/instance_memory.h"

#include <fmt/format.h>

#include "tamis/base/memory.h"

namespace tamis::data {

void require_memory_for(const Task& task, int64_t length, double instances) {
  // Generating an instance takes 48 bytes per token: ids, positions and answers of eight bytes each, a copy, and its
  // JSON. Keeping it takes one byte per token of a text, or 24 for ids, positions and answers.
  constexpr double kBytesMade = 48, kBytesOfAny = 512;
  const double kept = std::holds_alternative<TextTask>(task.kind) ? 1 : 24;
  const double bytes = static_cast<double>(length) * (kBytesMade + kept * instances) + kBytesOfAny * instances;
  const bool several = instances > 1;
  const std::string count = several ? fmt::format("{:.0f} instances", instances) : "an instance";
  require_memory(bytes, fmt::format("{}: {} of {} tokens", task.name, count, length),
                 several ? "use a smaller length or fewer instances" : "use a smaller length");
}

}  // namespace tamis::data
