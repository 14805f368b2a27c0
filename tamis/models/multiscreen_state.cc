#include "tamis/models/multiscreen_state.h"

#include <ATen/ATen.h>

#include <istream>
#include <ostream>

#include "tamis/base/error.h"

namespace tamis::models {
namespace {

constexpr std::string_view kFormat = "tamis multiscreen state 1";

}  // namespace

MultiscreenState::MultiscreenState(const MultiscreenConfig& config, const ForwardOptions& options,
                                   std::shared_ptr<const MultiscreenWeights> weights)
    : config_(config), options_(options), weights_(std::move(weights)), layers_(new_layers()) {}

std::vector<ops::ScreeningState> MultiscreenState::new_layers() const {
  const ops::ScreeningOptions options = screening_options(config_, options_);
  std::vector<ops::ScreeningState> layers;
  for (const DecodingTile& tile : weights_->layers) {
    layers.emplace_back(tile.s_w, tile.s_r, config_.key_dim, config_.value_dim,
                        ops::ScreeningState::Options{.mipe_threshold = options.mipe_threshold,
                                                     .expand_beyond = options.expand_beyond,
                                                     .tanh_norm = options.tanh_norm,
                                                     .position = options.position});
  }
  return layers;
}

int64_t MultiscreenState::bytes() const {
  int64_t total = 0;
  for (const ops::ScreeningState& layer : layers_) total += layer.bytes();
  return total;
}

int64_t MultiscreenState::bytes_after(int64_t tokens) const {
  int64_t total = 0;
  for (const ops::ScreeningState& layer : layers_) total += layer.bytes_after(tokens);
  return total;
}

void MultiscreenState::reserve(int64_t tokens) {
  for (ops::ScreeningState& layer : layers_) layer.reserve(tokens);
}

void MultiscreenState::advance() {
  for (ops::ScreeningState& layer : layers_) layer.advance();
}

float* MultiscreenState::scratch(int64_t numbers) {
  if (!scratch_.defined() || scratch_.numel() < numbers) scratch_ = at::empty({numbers}, at::kFloat);
  return scratch_.data_ptr<float>();
}

std::unique_ptr<DecodingState> MultiscreenState::fork() const {
  auto copy = std::make_unique<MultiscreenState>(config_, options_, weights_);
  for (size_t l = 0; l < layers_.size(); ++l) copy->layers_[l] = layers_[l].fork();
  return copy;
}

std::string MultiscreenState::header() const {
  return fmt::format("{}: {} windows, {}", kFormat, options_.expand_windows ? "expanded" : "learned",
                     to_json(config_).dump());
}

void MultiscreenState::save(std::ostream& out) const {
  out << header() << '\n';
  for (const ops::ScreeningState& layer : layers_) layer.save(out);
  if (!out) fail(ExitCode::kStorage, "decoding state: cannot write it");
}

void MultiscreenState::load(std::istream& in) {
  const std::string expected = header() + '\n';
  std::string found(expected.size(), '\0');
  in.read(found.data(), static_cast<std::streamsize>(found.size()));
  if (found != expected) {
    fail(ExitCode::kInput, "decoding state: expected one of this model ({}), but the bytes begin otherwise", header());
  }
  std::vector<ops::ScreeningState> layers = new_layers();
  for (ops::ScreeningState& layer : layers) {
    layer.load(in);
    if (layer.position() != layers.front().position()) {
      fail(ExitCode::kInput, "decoding state: its layers stand at different positions; the bytes are damaged");
    }
  }
  layers_ = std::move(layers);
}

}  // namespace tamis::models
