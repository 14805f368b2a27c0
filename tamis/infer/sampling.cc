#include "tamis/infer/sampling.h"

#include <ATen/ATen.h>

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

namespace {

std::span<const float> numbers(const at::Tensor& x_N) {
  return {x_N.const_data_ptr<float>(), static_cast<size_t>(x_N.numel())};
}

/// The `count` largest logits with their ids, by descending logits and then ascending ids, and whether all logits are
/// finite: float32 [2 count + 1] on the CPU, in one copy.
at::Tensor largest_on_host(const at::Tensor& logits_N, int64_t count) {
  const auto [values, ids] = count == 1 ? logits_N.max(0, /*keepdim=*/true)
                                        : at::sort(logits_N, /*stable=*/std::optional(true), 0, /*descending=*/true);
  const at::Tensor finite = logits_N.isfinite().all().view({1});
  return at::cat({values.narrow(0, 0, count), ids.narrow(0, 0, count).to(at::kFloat), finite.to(at::kFloat)}).cpu();
}

}  // namespace

int64_t sample(const at::Tensor& logits_N, const SamplingOptions& options, uint64_t position) {
  const int64_t count = options.temperature == 0 ? 1 : options.top_k, N = logits_N.size(0);
  constexpr int64_t kMostIds = int64_t{1} << 24;  // that float32 represents
  if (!logits_N.is_cpu() && count > 0 && count < N && N <= kMostIds) {
    const at::Tensor found = largest_on_host(logits_N, count);
    const std::span<const float> largest = numbers(found);
    if (largest.back() == 1) {
      return static_cast<int64_t>(largest[count + sample(largest.first(count), options, position)]);
    }
  }
  const at::Tensor all = logits_N.cpu().contiguous();
  return sample(numbers(all), options, position);
}

}  // namespace tamis::infer
