// Looking inside a Multiscreen: windows, acceptance widths, relevance maps.

#include <ATen/ATen.h>

#include <cmath>

#include "tamis/models/multiscreen.h"
#include "tamis/models/probe.h"

namespace tamis::models {

std::vector<Model::Tile> Multiscreen::tiles() const {
  const at::NoGradGuard no_grad;
  std::vector<Tile> result;
  for (size_t l = 0; l < layers_.size(); ++l) {
    const at::Tensor window = layers_[l].s_w.to(at::kCPU, at::kDouble).exp() + 1;
    const at::Tensor accept = layers_[l].s_r.to(at::kCPU, at::kDouble).sigmoid();
    for (int64_t h = 0; h < config_.num_attention_heads; ++h) {
      result.push_back({static_cast<int64_t>(l), h, window[h].item<double>(), accept[h].item<double>()});
    }
  }
  return result;
}

std::vector<RelevanceMap> Multiscreen::relevance(const at::Tensor& tokens_1T, const ForwardOptions& options) const {
  const at::NoGradGuard no_grad;
  const ops::ScreeningOptions base = screening_options(config_, options);
  const std::vector<Tile> all_tiles = tiles();
  std::vector<RelevanceMap> maps;
  at::Tensor x_1TD = embedded(tokens_1T);
  for (const Layer& layer : layers_) {
    const ops::ScreeningWeights w = tile_weights(layer, options.compute_dtype);
    RelevanceMap map;
    map.layer = static_cast<int64_t>(maps.size());
    for (const Tile& tile : all_tiles) {
      if (tile.layer != map.layer) continue;
      const bool expanded = base.expand_beyond && tile.window > *base.expand_beyond;
      map.window.push_back(expanded ? INFINITY : tile.window);
      map.accept.push_back(tile.accept);
    }
    const auto screen = [&](const ops::ScreeningProjections& p) {
      const auto seen = ops::reference::screening_relevance(p.q_BTHK, p.k_BTHK, w.s_w, w.s_r, base);
      map.similarity = seen.similarity.squeeze(0);
      map.trim = seen.trim.squeeze(0);
      map.softmask = seen.softmask.squeeze(0);
      map.relevance = map.trim * map.softmask;
      return ops::screening(p, w.s_w, w.s_r, base);
    };
    x_1TD = apply_tiles(config_, w, screen, x_1TD);
    maps.push_back(std::move(map));
  }
  return maps;
}

at::Tensor Multiscreen::attention_mass(const at::Tensor& tokens_1T, int64_t first, int64_t last,
                                       const ForwardOptions& options) const {
  const at::NoGradGuard no_grad;
  const ops::ScreeningOptions base = screening_options(config_, options);
  ops::ScreeningOptions plain = base;
  plain.tanh_norm = false;
  std::vector<at::Tensor> masses;
  at::Tensor x_1TD = embedded(tokens_1T);
  for (const Layer& layer : layers_) {
    const ops::ScreeningWeights w = tile_weights(layer, options.compute_dtype);
    const auto screen = [&](const ops::ScreeningProjections& p) {
      const auto mix = [&](const at::Tensor& v) { return ops::screening(p.q_BTHK, p.k_BTHK, v, w.s_w, w.s_r, plain); };
      masses.push_back(models::attention_mass({p.v_BTHV, mix}, first, last));
      return ops::screening(p, w.s_w, w.s_r, base);
    };
    x_1TD = apply_tiles(config_, w, screen, x_1TD);
  }
  return at::stack(masses).cpu();
}

}  // namespace tamis::models
