#include "tamis/data/copy.h"

#include <algorithm>

namespace tamis::data {
namespace {

constexpr int64_t kSeparator = 0;

int64_t copy_min_length(const Settings&) {
  return 2;
}

int64_t choices(const Settings& settings) {
  return settings.at("vocab") - 1;
}

TokenInstance copy_instance(const TaskRequest& request, uint64_t index) {
  Random random = instance_random(kCopy, request, index);
  const int64_t said = request.length / 2;
  TokenInstance instance;
  for (int64_t i = 0; i < said; ++i) {
    instance.answers.push_back(1 + static_cast<int64_t>(random.below(choices(request.settings))));
    instance.answer_positions.push_back(said + i);
  }
  instance.ids = instance.answers;
  instance.ids.push_back(kSeparator);
  instance.ids.insert(instance.ids.end(), instance.answers.begin(), instance.answers.end() - 1);
  return instance;
}

std::optional<int64_t> solve_copy(std::span<const int64_t> read, const Settings&) {
  const auto separator = std::find(read.begin(), read.end(), kSeparator);
  if (separator == read.end()) return std::nullopt;
  const auto said = read.end() - separator - 1;
  return said < separator - read.begin() ? std::optional(read[said]) : std::nullopt;
}

}  // namespace

std::vector<Task> copy_tasks() {
  return {{.name = "copy",
           .summary = "a sequence of token ids to repeat",
           .default_length = 64,
           .settings = {{"vocab", 32, 2, int64_t{1} << 31, "Ids, of which 0 is the separator"}},
           .min_length = copy_min_length,
           .kind = TokenTask{copy_instance, solve_copy, choices}}};
}

}  // namespace tamis::data
