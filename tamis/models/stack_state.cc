#include "tamis/models/stack_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <istream>
#include <ostream>

#include "tamis/base/error.h"

namespace tamis::models {

bool StackWeights::token_by_token() const {
  return std::ranges::all_of(layers, [](const DecodingLayer& layer) { return layer.form.has_value(); });
}

StackState::StackState(std::string config, std::shared_ptr<const StackWeights> weights,
                       std::vector<std::unique_ptr<MixerState>> layers)
    : config_(std::move(config)), weights_(std::move(weights)), layers_(std::move(layers)) {}

int64_t StackState::bytes() const {
  int64_t total = 0;
  for (const auto& layer : layers_) total += layer->bytes();
  return total;
}

int64_t StackState::bytes_after(int64_t tokens) const {
  int64_t total = 0;
  for (const auto& layer : layers_) total += layer->bytes_after(tokens);
  return total;
}

void StackState::reserve(int64_t tokens) {
  for (const auto& layer : layers_) layer->reserve(tokens);
}

void StackState::begin(int64_t tokens) {
  for (const auto& layer : layers_) layer->begin(tokens);
}

void StackState::end_token() {
  for (const auto& layer : layers_) layer->end_token();
  advance(1);
}

float* StackState::scratch(int64_t numbers) {
  if (!scratch_.defined() || scratch_.numel() < numbers) scratch_ = at::empty({numbers}, at::kFloat);
  return scratch_.data_ptr<float>();
}

std::unique_ptr<DecodingState> StackState::fork() const {
  std::vector<std::unique_ptr<MixerState>> layers;
  for (const auto& layer : layers_) layers.push_back(layer->fork());
  auto copy = std::make_unique<StackState>(config_, weights_, std::move(layers));
  copy->position_ = position_;
  return copy;
}

std::string StackState::header() const {
  return "tamis stack state 1: " + config_;
}

void StackState::save(std::ostream& out) const {
  out << header() << '\n';
  out.write(reinterpret_cast<const char*>(&position_), sizeof(position_));
  for (const auto& layer : layers_) layer->save(out);
  if (!out) fail(ExitCode::kStorage, "decoding state: cannot write it");
}

void StackState::load(std::istream& in) {
  const std::string expected = header() + '\n';
  std::string found(expected.size(), '\0');
  in.read(found.data(), static_cast<std::streamsize>(found.size()));
  int64_t position = 0;
  in.read(reinterpret_cast<char*>(&position), sizeof(position));
  constexpr int64_t kMostPositions = int64_t{1} << 40;
  if (found != expected || !in || position < 0 || position > kMostPositions) {
    fail(ExitCode::kInput, "decoding state: expected one of this model ({}), but the bytes begin otherwise", header());
  }
  std::vector<std::unique_ptr<MixerState>> layers;
  for (const DecodingLayer& layer : weights_->layers) layers.push_back(layer.mixer->new_state());
  for (const auto& layer : layers) layer->load(in, position);
  layers_ = std::move(layers);
  position_ = position;
}

}  // namespace tamis::models
