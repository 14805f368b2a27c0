#include "tamis/data/mqrar.h"

#include <algorithm>

#include "tamis/base/error.h"
#include "tamis/data/recall.h"

namespace tamis::data {
namespace {

constexpr int64_t kMqrarSeparator = 0;
constexpr int64_t kPairsOfEach = 2;  // minimum number of pairs of each key

void check_mqrar_settings(const Settings& settings) {
  const int64_t keys = settings.at("keys");
  if (keys < first_value(settings)) return;
  fail(ExitCode::kUsage, "mqrar: {} keys need a vocab of at least {}, but it is {}", keys, 2 * (keys + 1),
       settings.at("vocab"));
}

int64_t mqrar_min_length(const Settings& settings) {
  return 2 * kPairsOfEach * settings.at("keys") + 1 + settings.at("queries");
}

/// The key index in [0, keys) of every pair.
std::vector<int64_t> draw_order(Random& random, int64_t keys, int64_t pairs) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < kPairsOfEach * keys; ++i) order.push_back(i % keys);
  while (static_cast<int64_t>(order.size()) < pairs) order.push_back(static_cast<int64_t>(random.below(keys)));
  random.shuffle(std::span<int64_t>(order));
  return order;
}

TokenInstance mqrar_instance(const TaskRequest& request, uint64_t index) {
  Random random = instance_random(kMqrar, request, index);
  const int64_t queries = request.settings.at("queries");
  const int64_t values = count_values(request.settings);
  const auto keys = draw_keys(random, request.settings, request.settings.at("keys"));
  std::vector<int64_t> latest(keys.size(), -1);
  TokenInstance instance;
  for (const int64_t key : draw_order(random, static_cast<int64_t>(keys.size()), (request.length - 1 - queries) / 2)) {
    const int64_t old = latest[key];
    while (latest[key] == old) {
      latest[key] = first_value(request.settings) + static_cast<int64_t>(random.below(values));
    }
    instance.ids.insert(instance.ids.end(), {keys[key], latest[key]});
  }
  instance.ids.push_back(kMqrarSeparator);
  for (int64_t i = 0; i < queries; ++i) {
    const uint64_t key = random.below(keys.size());
    instance.answer_positions.push_back(static_cast<int64_t>(instance.ids.size()));
    instance.ids.push_back(keys[key]);
    instance.answers.push_back(latest[key]);
  }
  return instance;
}

std::optional<int64_t> solve_mqrar(std::span<const int64_t> read, const Settings& settings) {
  if (std::find(read.begin(), read.end(), kMqrarSeparator) == read.end()) return std::nullopt;
  return solve_recall(read, settings);
}

}  // namespace

std::vector<Task> mqrar_tasks() {
  constexpr int64_t kMost = 1 << 20;
  return {{.name = "mqrar",
           .summary = "key-value pairs that keep changing the values of keys, then queries for the latest values",
           .default_length = 64,
           .settings = {{"keys", 8, 1, kMost, "Number of different keys"},
                        {"queries", 15, 1, kMost, "Number of queries"},
                        {"vocab", 256, 4, kMost, "Ids, half of them keys and half values"}},
           .check_settings = check_mqrar_settings,
           .min_length = mqrar_min_length,
           .kind = TokenTask{mqrar_instance, solve_mqrar, count_values}}};
}

}  // namespace tamis::data
