#include "tamis/models/probe.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

namespace tamis::models {

at::Tensor probed_weights(const at::Tensor& v_1THV, const std::function<at::Tensor(const at::Tensor& v)>& mix) {
  constexpr int64_t kProbes = 128;
  const int64_t T = v_1THV.size(1), H = v_1THV.size(2);
  std::vector<at::Tensor> columns;
  for (int64_t first = 0; first < T; first += kProbes) {
    const int64_t count = std::min(kProbes, T - first);
    const at::Tensor probes = at::zeros({1, T, H, count}, v_1THV.options());
    probes.narrow(1, first, count)
        .copy_(at::eye(count, v_1THV.options()).view({1, count, 1, count}).expand({1, count, H, count}));
    columns.push_back(mix(probes).squeeze(0).permute({1, 0, 2}));  // [H, T, count]
  }
  return at::cat(columns, 2);
}

}  // namespace tamis::models
