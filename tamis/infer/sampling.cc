#include "tamis/infer/sampling.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/random.h"

namespace tamis::infer {
namespace {

constexpr uint64_t kSamplingStream = 0x5a3b'0001;  // first word of the Random key; unique to sampling

struct Candidate {
  int64_t id;
  double weight;  // proportional to its probability; the likeliest has 1
};

/// All tokens by descending probability; ties by ascending id.
std::vector<Candidate> rank(std::span<const float> logits, double temperature, float highest) {
  std::vector<Candidate> candidates(logits.size());
  for (size_t n = 0; n < logits.size(); ++n) {
    const double below_highest = static_cast<double>(logits[n]) - highest;
    candidates[n] = {static_cast<int64_t>(n), std::exp(below_highest / temperature)};
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a.weight > b.weight; });
  return candidates;
}

double total_weight(const std::vector<Candidate>& candidates) {
  double total = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  return total;
}

void keep_top_k(std::vector<Candidate>& candidates, int64_t top_k) {
  if (top_k > 0 && static_cast<size_t>(top_k) < candidates.size()) candidates.resize(top_k);
}

void keep_top_p(std::vector<Candidate>& candidates, double top_p) {
  if (top_p >= 1) return;
  const double wanted = top_p * total_weight(candidates);
  double reached = 0;
  size_t kept = 0;
  while (kept < candidates.size() && reached < wanted) reached += candidates[kept++].weight;
  candidates.resize(std::max<size_t>(kept, 1));
}

void keep_min_p(std::vector<Candidate>& candidates, double min_p) {
  std::erase_if(candidates, [&](const Candidate& candidate) { return candidate.weight < min_p; });
}

}  // namespace

int64_t sample(std::span<const float> logits_N, const SamplingOptions& options, uint64_t position) {
  TAMIS_ASSERT(!logits_N.empty());
  for (size_t n = 0; n < logits_N.size(); ++n) {
    if (!std::isfinite(logits_N[n])) {
      fail(ExitCode::kDiverged, "sampling: the logit of token {} is {} at position {}; the model has diverged", n,
           logits_N[n], position);
    }
  }
  const auto highest = std::max_element(logits_N.begin(), logits_N.end());
  if (options.temperature == 0) return highest - logits_N.begin();

  auto candidates = rank(logits_N, options.temperature, *highest);
  keep_top_k(candidates, options.top_k);
  keep_top_p(candidates, options.top_p);
  keep_min_p(candidates, options.min_p);
  double left = Random({kSamplingStream, options.seed, position}).uniform() * total_weight(candidates);
  for (const Candidate& candidate : candidates) {
    left -= candidate.weight;
    if (left < 0) return candidate.id;
  }
  return candidates.back().id;  // reached only through rounding
}

}  // namespace tamis::infer
