#include "tamis/models/probe.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <vector>

namespace tamis::models {

at::Tensor relevance_map(const ValuePath& path) {
  constexpr int64_t kProbes = 128;
  const int64_t T = path.v_1THV.size(1), H = path.v_1THV.size(2);
  const auto options = path.v_1THV.options();
  std::vector<at::Tensor> columns;
  for (int64_t first = 0; first < T; first += kProbes) {
    const int64_t count = std::min(kProbes, T - first);
    const at::Tensor probes = at::zeros({1, T, H, count}, options);
    probes.narrow(1, first, count)
        .copy_(at::eye(count, options).view({1, count, 1, count}).expand({1, count, H, count}));
    columns.push_back(path.mix(probes).squeeze(0).permute({1, 0, 2}));  // [H, T, count]
  }
  return at::cat(columns, 2).abs();
}

at::Tensor last_relevance(const ValuePath& path) {
  const at::AutoGradMode with_gradients(true);
  // How the second channel of the last result changes with that of each value, all of them being (1, 0). A small
  // change at right angles to the first channel leaves the length 1, so scaling to unit length does not matter either.
  const at::Tensor values = at::zeros({1, path.v_1THV.size(1), path.v_1THV.size(2), 2}, path.v_1THV.options());
  values.select(3, 0).fill_(1);
  values.requires_grad_(true);
  const at::Tensor last = path.mix(values).select(1, -1).select(-1, 1).sum();
  return torch::autograd::grad({last}, {values})[0].select(3, 1).squeeze(0).t().abs();
}

at::Tensor attention_mass(const ValuePath& path, int64_t first, int64_t last) {
  const at::Tensor weights_HT = last_relevance(path).to(at::kDouble);
  const at::Tensor all = weights_HT.sum(-1), inside = weights_HT.narrow(1, first, last - first).sum(-1);
  return at::where(all > 0, inside / all, at::zeros_like(all));
}

}  // namespace tamis::models
