#include "tamis/train/memory_estimate.h"

#include "tamis/models/parameter_parts.h"
#include "tamis/train/machine.h"

namespace tamis::train {

nlohmann::json estimate_memory(const Recipe& recipe, at::Device device) {
  constexpr int64_t kFloat = 4, kMoments = 2;
  const TrainRecipe& train = recipe.train;
  const std::string precision = train.precision == "auto" ? fastest_precision(device) : train.precision;
  const bool narrow = precision != "float32";  // then matrices have a copy of 16 bits besides their float32 form
  const int64_t parameters = models::count_parts(recipe.model).total();
  const models::KeptActivations kept = models::count_activations(recipe.model);
  const int64_t tokens = train.batch_tokens / train.accumulation;
  const auto activations =
      static_cast<double>(tokens * (kept.products * (narrow ? 2 : kFloat) + kept.residual * kFloat));
  nlohmann::json memory = {{"precision", precision},
                           {"tokens", tokens},
                           {"weights", parameters * (kFloat + (narrow ? 2 : 0))},
                           {"gradients", parameters * kFloat},
                           {"optimizer", parameters * kFloat * kMoments},
                           {"activations", static_cast<int64_t>(activations * (1 - train.recompute))}};
  int64_t total = 0;
  for (const char* part : {"weights", "gradients", "optimizer", "activations"}) total += memory[part].get<int64_t>();
  memory["total"] = total;
  return memory;
}

}  // namespace tamis::train
