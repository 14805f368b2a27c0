#include "tamis/train/communication.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/train/gradient_exchange.h"
#include "tamis/train/machine.h"
#include "tamis/train/trainer.h"

namespace tamis::train {
namespace {

using nlohmann::json;

/// For one sequence, of every layer.
using LayerTraffic = std::vector<models::ContextTraffic>;

LayerTraffic context_traffic(const Recipe& recipe, const models::Model& model, int64_t rank, int64_t layers) {
  const int64_t size = recipe.train.context_parallel;
  const at::ScalarType dtype = compute_dtype(recipe.train.precision);
  LayerTraffic traffic = model.context_traffic(recipe.train.length / size, rank, size, dtype);
  const size_t period = traffic.size();
  for (auto l = static_cast<int64_t>(period); l < layers; ++l) traffic.push_back(traffic[l % period]);
  return traffic;
}

ExchangeLayout layout_of(const Recipe& recipe, int64_t processes) {
  const auto model = models::make_model(recipe.model, models::Start{.seed = std::nullopt, .device = at::kMeta});
  const std::vector<models::Parameter> parameters = model->parameters();
  std::vector<int64_t> sizes;
  for (const models::Parameter& parameter : parameters) sizes.push_back(parameter.tensor.numel());
  return {sizes, units_of(parameters, recipe.train.shard == "parameters"), processes, Reduction().bucket_elements};
}

}  // namespace

json plan_communication(const Recipe& recipe, const models::Model* model, const Network& network) {
  const TrainRecipe& train = recipe.train;
  check_processes(train, network.processes);
  const int64_t rows = network.processes / train.context_parallel;
  const auto micro = static_cast<int64_t>(micro_batches(train, rows).size());
  const ExchangeLayout layout = layout_of(recipe, network.processes);
  const bool every_micro_batch = train.reduction == "ordered" || train.shard == "parameters";
  const int64_t sums = every_micro_batch ? micro / rows : 1;
  const int64_t parameters = layout.parameter_bytes(micro / rows);
  const int64_t gradients =
      sums * layout.gradient_bytes(train.reduction_dtype == "bfloat16" ? at::kBFloat16 : at::kFloat);

  // A model of one period of the pattern has the windows of the first layers.
  std::unique_ptr<models::Model> small;
  const auto layers = recipe.model.at("num_hidden_layers").get<int64_t>();
  if (!model && train.context_parallel > 1) {
    json config = recipe.model;
    config["num_hidden_layers"] =
        std::min<int64_t>(layers, static_cast<int64_t>(config.value("pattern", std::string("s")).size()));
    small = models::make_model(config, models::Start{.seed = train.seed});
    model = small.get();
  }
  const auto recomputed = static_cast<int64_t>(std::lround(train.recompute * static_cast<double>(layers)));
  std::vector<int64_t> of_layers(layers);
  int64_t busiest = 0, messages = 0;
  for (int64_t rank = 0; rank < train.context_parallel && train.context_parallel > 1; ++rank) {
    const LayerTraffic traffic = context_traffic(recipe, *model, rank, layers);
    int64_t own = 0, own_messages = 0;
    for (int64_t l = 0; l < layers; ++l) {
      const int64_t forward_passes = l < recomputed ? 2 : 1;
      const int64_t sequence = forward_passes * traffic[l].forward + traffic[l].backward;
      of_layers[l] += sequence * train.batch_size;
      own += sequence * train.batch_size / rows;
      own_messages += (forward_passes * traffic[l].forward_messages + traffic[l].backward_messages) * micro / rows;
    }
    busiest = std::max(busiest, own);
    messages = std::max(messages, own_messages);
  }
  int64_t all = network.processes * (gradients + parameters);
  for (const int64_t bytes : of_layers) all += bytes;
  // Of the messages those that wait for one another. Gradients go to all processes at once. What is gathered goes round
  // a ring: the parameters, and four times a step a few numbers.
  constexpr int64_t kSmallGathers = 4;
  const auto buckets = static_cast<int64_t>(layout.buckets().size());
  messages += sums * buckets + (layout.gathers(micro / rows) + kSmallGathers) * (network.processes - 1);
  const auto sent = static_cast<double>(gradients + parameters + busiest);
  return {{"processes", network.processes},
          {"context_parallel", train.context_parallel},
          {"buckets", buckets},
          {"gradient_bytes", gradients},
          {"parameter_bytes", parameters},
          {"context_bytes", of_layers},
          {"sent_bytes", all},
          {"seconds", sent / network.bandwidth + static_cast<double>(messages) * network.latency}};
}

}  // namespace tamis::train
