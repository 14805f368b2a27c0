#include "tamis/models/sequence_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <istream>
#include <ostream>
#include <string_view>

#include "tamis/base/error.h"
#include "tamis/base/json.h"
#include "tamis/models/model_config.h"

namespace tamis::models {
namespace {

constexpr std::string_view kFormat = "tamis decoding state 2: ";
// Version 1, until November 2026: two formats, of which that of a Multiscreen has no position of its own.
constexpr std::string_view kMultiscreenFormat1 = "tamis multiscreen state 1: ";
constexpr std::string_view kStackFormat1 = "tamis stack state 1: ";

constexpr std::string_view kLearned = "learned windows, ", kExpanded = "expanded windows, ";

/// The first line of a saved state.
struct Header {
  bool has_position = true;
  bool expanded = false;
  nlohmann::json config;  // complete; discarded where the line is not that of a state
};

bool take_prefix(std::string_view& line, std::string_view prefix) {
  if (!line.starts_with(prefix)) return false;
  line.remove_prefix(prefix.size());
  return true;
}

std::string read_line(std::istream& in) {
  constexpr size_t kLongest = 1 << 16;
  std::string line;
  for (int c = in.get(); c != std::istream::traits_type::eof() && c != '\n' && line.size() < kLongest; c = in.get()) {
    line += static_cast<char>(c);
  }
  return line;
}

Header read_header(std::istream& in) {
  const std::string bytes = read_line(in);
  std::string_view line = bytes;
  Header header;
  const bool old_stack = take_prefix(line, kStackFormat1);
  header.has_position = !take_prefix(line, kMultiscreenFormat1);
  const bool known = old_stack || !header.has_position || take_prefix(line, kFormat);
  header.expanded = take_prefix(line, kExpanded);
  if (!known || !(header.expanded || take_prefix(line, kLearned) || old_stack)) return header;
  const nlohmann::json config = try_parse_json(line);
  if (config.is_discarded()) return header;
  try {
    header.config = complete_stored_config(config);
  } catch (const Error&) {
    header.config = nullptr;
  }
  return header;
}

int64_t read_position(std::istream& in) {
  int64_t position = -1;
  in.read(reinterpret_cast<char*>(&position), sizeof(position));
  return in ? position : -1;
}

/// The position inside the first layer of a Multiscreen's state, which is left unread.
int64_t peek_screening_position(std::istream& in) {
  constexpr std::streamoff kBefore = 8 + 3 * sizeof(int64_t);  // mark and sizes of a ScreeningState
  const auto begin = in.tellg();
  in.seekg(kBefore, std::ios::cur);
  const int64_t position = read_position(in);
  in.seekg(begin);
  return position;
}

}  // namespace

LayerWeights DecodingLayer::dense() const {
  LayerWeights result = vectors;
  if (mlp) {
    result.gate_up = mlp->gate_up.dense(vectors.dtype);
    result.down = mlp->down.dense(vectors.dtype);
  }
  return result;
}

bool DecodingWeights::token_by_token() const {
  return std::ranges::all_of(layers, [](const DecodingLayer& layer) { return layer.step.has_value(); });
}

SequenceState::SequenceState(nlohmann::json config, std::optional<double> expand_beyond,
                             std::shared_ptr<const DecodingWeights> weights)
    : config_(std::move(config)), expand_beyond_(expand_beyond), weights_(std::move(weights)), layers_(new_layers()) {}

std::vector<std::unique_ptr<MixerState>> SequenceState::new_layers() const {
  std::vector<std::unique_ptr<MixerState>> layers;
  for (const DecodingLayer& layer : weights_->layers) {
    layers.push_back(layer.layer->mixer().new_state(expand_beyond_));
  }
  return layers;
}

int64_t SequenceState::bytes() const {
  int64_t total = 0;
  for (const auto& layer : layers_) total += layer->bytes();
  return total;
}

int64_t SequenceState::bytes_after(int64_t tokens) const {
  int64_t total = 0;
  for (const auto& layer : layers_) total += layer->bytes_after(tokens);
  return total;
}

void SequenceState::reserve(int64_t tokens) {
  for (const auto& layer : layers_) layer->reserve(tokens);
}

void SequenceState::begin(int64_t tokens) {
  for (const auto& layer : layers_) layer->begin(tokens);
}

void SequenceState::end_token() {
  for (const auto& layer : layers_) layer->end_token();
  advance(1);
}

float* SequenceState::scratch(int64_t numbers) {
  if (!scratch_.defined() || scratch_.numel() < numbers) scratch_ = at::empty({numbers}, at::kFloat);
  return scratch_.data_ptr<float>();
}

SequenceState::SequenceState(const SequenceState& other)
    : config_(other.config_),
      expand_beyond_(other.expand_beyond_),
      weights_(other.weights_),
      position_(other.position_) {
  for (const auto& layer : other.layers_) layers_.push_back(layer->fork());
}

std::unique_ptr<DecodingState> SequenceState::fork() const {
  return std::unique_ptr<DecodingState>(new SequenceState(*this));
}

std::string SequenceState::header() const {
  return fmt::format("{}{}{}", kFormat, expand_beyond_ ? kExpanded : kLearned, config_.dump());
}

void SequenceState::save(std::ostream& out) const {
  out << header() << '\n';
  out.write(reinterpret_cast<const char*>(&position_), sizeof(position_));
  for (const auto& layer : layers_) layer->save(out);
  if (!out) fail(ExitCode::kStorage, "decoding state: cannot write it");
}

void SequenceState::load(std::istream& in) {
  const Header found = read_header(in);
  int64_t position = -1;
  if (found.config == config_ && found.expanded == expand_beyond_.has_value()) {
    position = found.has_position ? read_position(in) : peek_screening_position(in);
  }
  constexpr int64_t kMostPositions = int64_t{1} << 40;
  if (position < 0 || position > kMostPositions) {
    fail(ExitCode::kInput,
         "decoding state: expected one of this model ({}), but these bytes are another model's state, or none",
         header());
  }
  std::vector<std::unique_ptr<MixerState>> layers = new_layers();
  for (const auto& layer : layers) layer->load(in, position);
  layers_ = std::move(layers);
  position_ = position;
}

}  // namespace tamis::models
