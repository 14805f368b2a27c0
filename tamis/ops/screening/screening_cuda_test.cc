// The CUDA kernels of screening, by the operator itself: TAMIS_TEST_DEVICE=cuda.

#include "tamis/ops/screening/screening_cuda.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <vector>

#include "tamis/ops/screening/screening.h"
#include "tamis/ops/screening/testing.h"
#include "tamis/ops/testing.h"

namespace tamis::ops {
namespace {

using testing::kInfinity;
using testing::Shape;
using testing::Tensors;

class ScreeningCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::test_device().is_cuda()) GTEST_SKIP() << "TAMIS_TEST_DEVICE is not cuda";
    setenv("TAMIS_CUDA_KERNELS", "1", /*overwrite=*/1);
  }
};

testing::Function screening_there(const ScreeningOptions& on_cpu) {
  const ScreeningOptions options = testing::on_test_device(on_cpu);
  return testing::from_cpu([options](const Tensors& in) {
    EXPECT_TRUE(screening_has_cuda(in[0], in[2], options));
    return testing::operator_with(options)(in);
  });
}

/// Parts of blocks of 64 queries and keys, windows within and across them, K and V that fill no chunk.
const std::vector<Shape> kCudaShapes = {
    {1, 1, 16, 64, {2, 17.3, kInfinity}, {0.05, 0.5, 0.95}},
    {2, 63, 16, 24, {2, 17.3, 40, 90.5, kInfinity}, {0.95, 0.5, 0.05}},
    {1, 130, 2, 1, {2, 30, 3000, kInfinity}, {0.05, 0.95}},
    {2, 200, 8, 16, {2.5, 64, 65, kInfinity}, {0.3, 0.6}},
    {1, 150, 32, 128, {17.3, kInfinity}, {0.5, 0.9}},
    {1, 1000, 16, 64, {2, 17.3, 64.5, 255.9, 256, 257, 700, 3000, kInfinity}, {0.5, 0.95}},
    {2, 130, 16, 24, {2, 40, kInfinity}, {0.5}, 1},
    {1, 700, 7, 33, {2.5, 40, 300, kInfinity}, {0.5, 0.95}, 77},
};

TEST_F(ScreeningCuda, IsAsAccurateAsPlainTorch) {
  for (const Shape& shape : kCudaShapes) {
    SCOPED_TRACE(::testing::Message() << "T " << shape.T << ", T_q " << shape.queries);
    std::vector<Tensors> samples;
    for (uint64_t i = 0; i < (shape.T < 500 ? 4 : 1); ++i) {
      samples.push_back(testing::random_inputs(shape, 70 + 100 * i));
    }
    testing::expect_as_accurate_as_plain_once(screening_there({}), testing::reference_with({}), samples);
    for (Tensors& sample : samples) sample = testing::to_bfloat16(sample);
    testing::expect_as_accurate_as_plain_once(screening_there({}), testing::reference_with({}), samples);
  }
}

TEST_F(ScreeningCuda, OptionsAreAsAccurateAsPlainTorch) {
  const Shape shape = {2, 150, 6, 24, {2.5, 17.3, 90, kInfinity}, {0.5, 0.95}};
  at::Tensor document = at::full({2, 150}, 900, at::kLong);
  document.slice(1, 50).fill_(-3);
  document.select(0, 1).slice(0, 75, 78).fill_(8);  // -3 appears again
  const std::vector<ScreeningOptions> all_options = {
      {{.mipe_threshold = 20}}, {{.expand_beyond = 17.0}}, {{.tanh_norm = false}},
      {{.position = "none"}},   {{.trim_power = 1}},       {{.trim_power = 3, .softmask = "linear"}},
      {{.softmask = "none"}},   {.document = document}};
  for (const ScreeningOptions& options : all_options) {
    SCOPED_TRACE(&options - all_options.data());
    std::vector<Tensors> samples;
    for (uint64_t i = 0; i < 4; ++i) samples.push_back(testing::random_inputs(shape, 171 + 100 * i));
    testing::expect_as_accurate_as_plain_once(screening_there(options), testing::reference_with(options), samples);
  }
}

TEST_F(ScreeningCuda, GivesTheSameBitsAgain) {
  const Shape shape = {2, 300, 16, 64, {2.5, 90, kInfinity}, {0.5, 0.95}};
  const Tensors in = testing::random_inputs(shape, 71);
  EXPECT_TRUE(testing::same_bits(testing::outputs_and_gradients(screening_there({}), in),
                                 testing::outputs_and_gradients(screening_there({}), in)));
}

TEST_F(ScreeningCuda, NaNShowsInTheResult) {
  const Shape shape = {1, 100, 16, 8, {300, kInfinity}, {0.5}};
  for (const size_t argument : {0, 1}) {  // q, k
    Tensors in = testing::random_inputs(shape, 73);
    in[argument].select(1, 40).fill_(std::numeric_limits<double>::quiet_NaN());
    const at::Tensor out = screening_there({})(in)[0];
    EXPECT_TRUE(out.select(1, 40).isnan().all().item<bool>()) << "argument " << argument;
    EXPECT_TRUE(out.slice(1, 0, 40).isfinite().all().item<bool>()) << "argument " << argument;
  }
  for (const size_t argument : {2, 3, 4, 5}) {  // v, s_w, s_r, gate
    Tensors in = testing::random_inputs(shape, 74);
    in[argument].select(0, 0).fill_(std::numeric_limits<double>::quiet_NaN());
    EXPECT_TRUE(screening_there({})(in)[0].isnan().any().item<bool>()) << "argument " << argument;
  }
}

TEST_F(ScreeningCuda, SmallWidthsAreAsAccurateAsPlainTorch) {
  const Shape shape = {1, 150, 4, 24, {17.3, kInfinity}, {0.002, 0.02}};
  std::vector<Tensors> samples;
  for (uint64_t i = 0; i < 4; ++i) {
    Tensors in = testing::random_inputs(shape, 75 + 100 * i);
    in[1].copy_(in[0] + 0.02 * in[1]);  // keys near the queries, which so narrow heads accept
    samples.push_back(testing::to_bfloat16(in));
  }
  testing::expect_as_accurate_as_plain_once(screening_there({}), testing::reference_with({}), samples);
}

TEST_F(ScreeningCuda, ZeroRowsAndNoKeys) {
  const Shape shape = {1, 70, 16, 8, {17.3, kInfinity}, {0.5}};
  Tensors in = testing::random_inputs(shape, 72);
  for (int i = 0; i < 3; ++i) in[i].select(1, 5).zero_();
  for (const at::Tensor& x : testing::outputs_and_gradients(screening_there({}), in)) {
    EXPECT_TRUE(x.isfinite().all().item<bool>());
  }
  const at::Tensor none = at::empty({1, 0, 2, 16}, testing::test_device());
  EXPECT_EQ(screening(none, none, none, in[3].to(none.device()), in[4].to(none.device()), {}).numel(), 0);
}

}  // namespace
}  // namespace tamis::ops
