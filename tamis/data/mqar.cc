#include "tamis/data/mqar.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/data/recall.h"

namespace tamis::data {
namespace {

constexpr double kPower = 0.01;  // a

void check_mqar_settings(const Settings& settings) {
  const int64_t pairs = settings.at("pairs");
  if (pairs + 1 < first_value(settings)) return;
  fail(ExitCode::kUsage, "mqar: {} pairs and one unused key need a vocab of at least {}, but it is {}", pairs,
       2 * (pairs + 2), settings.at("vocab"));
}

int64_t mqar_min_length(const Settings& settings) {
  return 4 * settings.at("pairs");
}

/// Draws `count` different slots in [0, slots) one after another without replacement, with weights (slot + 1)^(a - 1).
/// Equivalent to ordering the slots by independent exponential times with these rates.
std::vector<int64_t> draw_slots(Random& random, int64_t slots, int64_t count) {
  std::vector<std::pair<double, int64_t>> times;
  for (int64_t slot = 0; slot < slots; ++slot) {
    const double rate = std::pow(static_cast<double>(slot + 1), kPower - 1);
    times.emplace_back(-std::log1p(-random.uniform()) / rate, slot);
  }
  std::partial_sort(times.begin(), times.begin() + count, times.end());
  std::vector<int64_t> drawn;
  for (int64_t i = 0; i < count; ++i) drawn.push_back(times[i].second);
  return drawn;
}

TokenInstance mqar_instance(const TaskRequest& request, uint64_t index) {
  Random random = instance_random(kMqar, request, index);
  const int64_t pairs = request.settings.at("pairs");
  const auto keys = draw_keys(random, request.settings, first_value(request.settings) - 1);  // those in pairs first
  const auto values = draw_values(random, request.settings, pairs);
  TokenInstance instance;
  for (int64_t i = 0; i < pairs; ++i) instance.ids.insert(instance.ids.end(), {keys[i], values[i]});
  while (static_cast<int64_t>(instance.ids.size()) < request.length) {
    instance.ids.push_back(keys[pairs + random.below(keys.size() - pairs)]);
  }
  std::vector<std::pair<int64_t, int64_t>> asked;  // position, pair
  const auto slots = draw_slots(random, (request.length - 2 * pairs) / 2, pairs);
  for (int64_t i = 0; i < pairs; ++i) asked.emplace_back(2 * (pairs + slots[i]), i);
  std::sort(asked.begin(), asked.end());
  for (const auto& [position, pair] : asked) {
    instance.ids[position] = keys[pair];
    instance.answer_positions.push_back(position);
    instance.answers.push_back(values[pair]);
  }
  return instance;
}

}  // namespace

std::vector<Task> mqar_tasks() {
  constexpr int64_t kMost = 1 << 20;
  return {{.name = "mqar",
           .summary = "key-value pairs, then one query for each key among filler",
           .default_length = 64,
           .settings = {{"pairs", 8, 1, kMost, "Number of key-value pairs, and of queries"},
                        {"vocab", 8192, 6, kMost, "Ids, half of them keys and half values"}},
           .check_settings = check_mqar_settings,
           .min_length = mqar_min_length,
           .kind = TokenTask{mqar_instance, solve_recall, count_values}}};
}

}  // namespace tamis::data
