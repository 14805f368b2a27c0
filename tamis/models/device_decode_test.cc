// Decoding on another device than the CPU, on a simulated one.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <utility>

#include "tamis/models/testing.h"
#include "tamis/ops/simulated_device/testing.h"

namespace tamis::models {
namespace {

using at::Tensor;
using nlohmann::json;
using ops::testing::SimulatedDevice;
using ::testing::Contains;
using testing::decode;
using ::testing::ElementsAre;
using testing::expect_near;
using ::testing::IsEmpty;
using testing::random_tokens;

TEST(SimulatedDevice, SeesWhatADeviceWouldHaveToWaitFor) {
  const at::NoGradGuard no_grad;
  SimulatedDevice& simulated = SimulatedDevice::get();
  const at::Device device = SimulatedDevice::device();
  const Tensor host = at::arange(6, at::kFloat).view({2, 3}), x = host.to(device);
  EXPECT_EQ(x.device(), device);
  simulated.reset();
  const Tensor y = (x.matmul(x.t()) + 1).softmax(-1).select(0, 1).clone();
  y.narrow(0, 1, 1).fill_(5);
  EXPECT_THAT(simulated.to_host(), IsEmpty());
  EXPECT_THAT(simulated.from_host(), IsEmpty());
  EXPECT_EQ(y[1].item<float>(), 5);
  EXPECT_TRUE(x.cpu().equal(host));
  x.nonzero();
  EXPECT_THAT(simulated.to_host(), ElementsAre("aten::_local_scalar_dense", "copy [2, 3]", "aten::nonzero"));
  EXPECT_EQ(simulated.bytes_to_host(), 24);
  const Tensor mask = x > 2;
  simulated.reset();
  EXPECT_TRUE(x.index({mask}).cpu().equal(host.index({host > 2})));
  EXPECT_THAT(simulated.to_host(), Contains("aten::index"));
  simulated.reset();
  x.clone().index_put_({mask}, at::zeros({}, x.options()));
  EXPECT_THAT(simulated.to_host(), ElementsAre("aten::_index_put_impl_"));
  simulated.reset();
  const Tensor rows = at::tensor({1, 0}, at::kLong);
  EXPECT_TRUE(x.index({rows.to(device)}).cpu().equal(host.index({rows})));
  EXPECT_THAT(simulated.to_host(), ElementsAre("copy [2, 3]"));
  EXPECT_THAT(simulated.from_host(), ElementsAre("copy [2]"));
  simulated.reset();
  x.copy_(host);
  EXPECT_THAT(simulated.from_host(), ElementsAre("copy [2, 3]"));
  EXPECT_THROW(x + host, c10::Error);
  EXPECT_TRUE((x + at::scalar_tensor(1)).cpu().equal(host + 1));
}

/// Layers of all mixers, and keys that change what a mixer computes.
const json kAllMixers = {{"model_type", "transformer"},
                         {"hidden_size", 64},
                         {"num_hidden_layers", 7},
                         {"pattern", "awebvms"},
                         {"mlstm_heads", 2},
                         {"window", 9},
                         {"qk_norm", true},
                         {"ssmax", "learned"},
                         {"vocab_size", 37},
                         {"num_attention_heads", 4},
                         {"max_position_embeddings", 32}};

json all_mixers(const json& change = json::object()) {
  json config = kAllMixers;
  config.update(change);
  return complete_config(config);
}

std::vector<json> device_configs() {
  std::vector<json> configs;
  for (const json& change : {json::object(), json{{"position", "none"}}, json{{"position", "rope"}},
                             json{{"tanh_norm", false}, {"gate", false}, {"fixed_r", 1.0}},
                             json{{"mipe_wrap_boundary", 20}}, json{{"num_attention_heads", 1}}}) {
    configs.push_back(testing::small_config(change));
  }
  configs.push_back(all_mixers());
  configs.push_back(all_mixers({{"ssmax", "position"}}));
  configs.push_back(
      all_mixers({{"ssmax", "none"}, {"rope_scaling", "llama3"}, {"rope_factor", 4}, {"rope_original_length", 16}}));
  configs.push_back(all_mixers({{"pattern", "awebv"}, {"num_hidden_layers", 5}, {"strict", true}}));
  // No score is within rounding of the threshold.
  configs.push_back(all_mixers({{"sieve", "algorithm1"}, {"sieve_epsilon", 100}}));
  return configs;
}

/// The same model on the CPU and on the device.
struct Twins {
  std::unique_ptr<Model> on_cpu, on_device;

  explicit Twins(const json& config) : on_cpu(make_model(config, 3)), on_device(make_model(config, 3)) {
    SimulatedDevice::get();
    testing::disturb(*on_cpu);
    testing::disturb(*on_device);
    move_to(*on_device, SimulatedDevice::device());
  }
  bool screens() const { return !on_cpu->screening_heads().empty(); }
};

/// tokens_T in the chunks of `lengths`, and what is left by single tokens.
Tensor in_chunks(const Model& model, DecodingState& state, const Tensor& tokens_T, std::vector<int64_t> lengths) {
  std::vector<Tensor> parts;
  for (int64_t at = 0; at < tokens_T.size(0); at += parts.back().size(0)) {
    const int64_t length = parts.size() < lengths.size() ? lengths[parts.size()] : 1;
    parts.push_back(decode(model, state, tokens_T.narrow(0, at, std::min(length, tokens_T.size(0) - at))));
  }
  return at::cat(parts);
}

class DeviceDecoding : public ::testing::TestWithParam<json> {};

constexpr double kNear = 2e-5;  // of the largest result, whose roundings pass through up to seven layers

TEST_P(DeviceDecoding, FullIsChunkedIsTokenByToken) {
  const at::NoGradGuard no_grad;
  const Twins model(GetParam());
  const Tensor tokens = random_tokens(1, 330, 37, 1)[0];
  for (const bool expand : {false, true}) {
    if (expand && !model.screens()) continue;
    const ForwardOptions options = {.expand_windows = expand};
    const Tensor full = model.on_cpu->hidden(tokens.unsqueeze(0), options)[0];
    for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{330}, {1, 100, 1, 1, 7, 150}, {}}) {
      SCOPED_TRACE(::testing::Message() << "expanded " << expand << ", " << lengths.size() << " chunks");
      const auto state = model.on_device->new_state(options);
      const Tensor some = lengths.empty() ? tokens.slice(0, 0, 80) : tokens;
      expect_near(in_chunks(*model.on_device, *state, some, lengths), full.slice(0, 0, some.size(0)), kNear);
      EXPECT_EQ(state->position(), some.size(0));
    }
  }
}

TEST_P(DeviceDecoding, ATokenIsComputedWithoutWaiting) {
  const at::NoGradGuard no_grad;
  const Twins model(GetParam());
  const Tensor tokens_BT = random_tokens(2, 60, 37, 2);
  SimulatedDevice& simulated = SimulatedDevice::get();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto first = model.on_device->new_state({.compute_dtype = dtype});
    const auto second = model.on_device->new_state({.compute_dtype = dtype});
    decode(*model.on_device, *second, tokens_BT[1].slice(0, 0, 7));
    DecodingState* const states[] = {first.get(), second.get()};
    model.on_device->decode(tokens_BT.slice(1, 7, 20).contiguous(), states);
    for (int64_t t = 20; t < 60; ++t) {  // over growing caches, full windows and the training length
      const Tensor token_B1 = tokens_BT.narrow(1, t, 1).contiguous();
      const bool on_device = t % 2 == 0;
      const Tensor given = on_device ? token_B1.to(SimulatedDevice::device()) : token_B1;
      simulated.reset();
      const Tensor x = model.on_device->decode(given, states);
      EXPECT_EQ(x.device(), SimulatedDevice::device());
      EXPECT_THAT(simulated.to_host(), IsEmpty());
      if (on_device) {
        EXPECT_THAT(simulated.from_host(), IsEmpty());
      } else {
        EXPECT_THAT(simulated.from_host(), ElementsAre("copy [2, 1]"));
      }
    }
  }
}

TEST_P(DeviceDecoding, StatesMoveBetweenDevices) {
  const at::NoGradGuard no_grad;
  const Twins model(GetParam());
  const Tensor tokens = random_tokens(1, 130, 37, 3)[0];
  const ForwardOptions options = {.expand_windows = model.screens()};
  const Tensor full = model.on_cpu->hidden(tokens.unsqueeze(0), options)[0];
  for (const int64_t seen : {1, 20, 101}) {
    const auto of_cpu = model.on_cpu->new_state(options), of_device = model.on_device->new_state(options);
    decode(*model.on_cpu, *of_cpu, tokens.slice(0, 0, seen));
    decode(*model.on_device, *of_device, tokens.slice(0, 0, seen));
    std::stringstream from_cpu, from_device;
    of_cpu->save(from_cpu);
    of_device->save(from_device);
    of_cpu->load(from_device);
    of_device->load(from_cpu);
    const Tensor rest = tokens.slice(0, seen), expected = full.slice(0, seen);
    expect_near(in_chunks(*model.on_cpu, *of_cpu, rest, {1, 5}), expected, kNear);
    expect_near(in_chunks(*model.on_device, *of_device, rest, {1, 5}), expected, kNear);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceDecoding, ::testing::ValuesIn(device_configs()));

TEST(DeviceDecoding, SeveralSequencesAndForksInBfloat16) {
  const at::NoGradGuard no_grad;
  const Twins model(testing::small_config());
  const Tensor tokens_BT = random_tokens(3, 120, 37, 4);
  for (const auto& [dtype, tolerance] : {std::pair{at::kFloat, kNear}, std::pair{at::kBFloat16, 0.02}}) {
    const ForwardOptions options = {.compute_dtype = dtype};
    const int64_t seen[] = {0, 1, 37};
    std::vector<std::unique_ptr<DecodingState>> owned;
    std::vector<DecodingState*> states;
    std::vector<Tensor> rest;
    for (int64_t b = 0; b < 3; ++b) {
      owned.push_back(model.on_device->new_state(options));
      if (seen[b] > 0) decode(*model.on_device, *owned[b], tokens_BT[b].slice(0, 0, seen[b]));
      owned[b] = owned[b]->fork();
      states.push_back(owned[b].get());
      rest.push_back(tokens_BT[b].narrow(0, seen[b], 60));
    }
    const Tensor tokens_BC = at::stack(rest);
    const Tensor full = model.on_cpu->hidden(tokens_BT, options);
    int64_t first = 0;
    for (const int64_t length : {37, 1, 1, 21}) {
      const Tensor x = model.on_device->decode(tokens_BC.narrow(1, first, length), states).cpu();
      for (int64_t b = 0; b < 3; ++b) expect_near(x[b], full[b].narrow(0, seen[b] + first, length), tolerance);
      first += length;
    }
  }
}

TEST(DeviceDecoding, ScreeningStatesAreOnTheDeviceAndBounded) {
  const at::NoGradGuard no_grad;
  const Twins model(testing::small_config());  // windows of up to 260 tokens
  const auto state = model.on_device->new_state({});
  EXPECT_EQ(state->bytes(), 0);
  state->reserve(3000);
  const int64_t bytes = state->bytes();
  EXPECT_GT(bytes, 0);
  decode(*model.on_device, *state, random_tokens(1, 2990, 37, 5)[0]);
  for (int t = 0; t < 10; ++t) decode(*model.on_device, *state, random_tokens(1, 1, 37, 6)[0]);
  EXPECT_EQ(state->bytes(), bytes);
  EXPECT_EQ(state->bytes_after(1'000'000), bytes);
}

}  // namespace
}  // namespace tamis::models
