#include "tamis/ops/mlstm/mlstm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "tamis/ops/mlstm/mlstm_cpu.h"
#include "tamis/ops/registration.h"
#include "tamis/ops/testing.h"

namespace tamis::ops::mlstm_test {
namespace {

using at::Tensor;
using testing::Tensors;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Shape {
  int64_t B, T, H, K, V;
  int64_t chunk = 64;
  bool state = false;      // starts from a given state
  bool documents = false;  // of different lengths, not the same in every sequence
  double forget = 3;       // mean of f
  double gates = 1;        // spread of i and f
};

std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << "B" << s.B << "_T" << s.T << "_H" << s.H << "_K" << s.K << "_V" << s.V << "_chunk" << s.chunk
             << (s.state ? "_state" : "") << (s.documents ? "_documents" : "") << (s.forget < 0 ? "_forgets" : "")
             << (s.gates > 1 ? "_wild" : "");
}

MlstmOptions options_of(const Shape& shape) {
  MlstmOptions options{.chunk = shape.chunk};
  if (shape.documents) {
    options.document = at::full({shape.B, shape.T}, 7, at::kLong);
    options.document->slice(1, shape.T / 5, shape.T / 2).fill_(3);
    options.document->slice(1, shape.T / 2, 2 * shape.T / 3).fill_(-1);
    if (shape.B > 1) options.document->select(0, 1).slice(0, shape.T / 3).fill_(5);
  }
  return options;
}

/// q, k, v, i, f and, with a state, C, n, m.
Tensors random_inputs(const Shape& s, uint64_t seed, at::ScalarType dtype = at::kFloat) {
  const auto random = [&](at::IntArrayRef shape, at::ScalarType type) {
    return testing::random_normal(shape, seed++, type);
  };
  Tensors in = {random({s.B, s.T, s.H, s.K}, dtype), random({s.B, s.T, s.H, s.K}, dtype),
                random({s.B, s.T, s.H, s.V}, dtype), random({s.B, s.T, s.H}, at::kFloat) * s.gates,
                random({s.B, s.T, s.H}, at::kFloat) * s.gates + s.forget};
  if (s.state) {
    in.push_back(random({s.B, s.H, s.K, s.V}, at::kFloat));
    in.push_back(random({s.B, s.H, s.K}, at::kFloat));
    in.push_back(random({s.B, s.H}, at::kFloat));
  }
  return in;
}

template <typename Operator>
testing::Function bound(const Operator& op, const MlstmOptions& options) {
  return [op, options](const Tensors& in) -> Tensors {
    MlstmOptions mine = options;
    if (in.size() > 5) mine.state = MlstmState{in[5], in[6], in[7]};
    const auto [h, C, n, m] = op(in[0], in[1], in[2], in[3], in[4], mine);
    return {h, C, n, m};
  };
}

testing::Function fused(const MlstmOptions& options = {}) {
  return bound([](auto&&... in) { return mlstm(in...); }, options);
}
testing::Function defined(const MlstmOptions& options = {}) {
  return bound([](auto&&... in) { return reference::mlstm(in...); }, options);
}
testing::Function parallel(const MlstmOptions& options = {}) {
  return bound([](auto&&... in) { return reference::mlstm_parallel(in...); }, options);
}

Tensors to_double(Tensors in) {
  for (Tensor& x : in) x = x.to(at::kDouble);
  return in;
}

void expect_close(const Tensors& found, const Tensors& expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_LE(testing::largest(found[i] - expected[i]), tolerance * testing::largest(expected[i])) << "tensor " << i;
  }
}

/// Expects `found` to satisfy the accuracy rule. Tensors of few numbers are common here (gates, m), and a plain result
/// may happen to be exact, so each error is the largest of several seeds.
void expect_accurate(const testing::Function& found, const testing::Function& reference, const Shape& shape,
                     uint64_t seed, at::ScalarType dtype = at::kFloat) {
  std::vector<Tensors> inputs;
  for (uint64_t i = 0; i < 4; ++i) inputs.push_back(random_inputs(shape, seed + 100 * i, dtype));
  testing::expect_as_accurate_as_plain(found, reference, inputs);
}

class MlstmTest : public ::testing::TestWithParam<Shape> {};

INSTANTIATE_TEST_SUITE_P(
    Shapes, MlstmTest,
    ::testing::Values(Shape{1, 1, 1, 16, 16}, Shape{2, 1, 3, 20, 33, 64, true}, Shape{2, 64, 2, 16, 32},
                      Shape{1, 131, 3, 21, 65}, Shape{1, 131, 2, 16, 15, 64, true}, Shape{2, 150, 2, 64, 128, 64, true},
                      Shape{1, 100, 2, 8, 16, 1, true}, Shape{1, 100, 2, 8, 16, 7}, Shape{1, 300, 2, 16, 16, 100},
                      Shape{1, 300, 1, 16, 16, 1000, true}, Shape{2, 210, 2, 16, 16, 64, false, true},
                      Shape{2, 210, 2, 16, 16, 32, true, true}, Shape{1, 200, 2, 16, 16, 64, true, false, -3},
                      Shape{2, 200, 2, 16, 16, 64, true, true, 0, 8}),
    [](const auto& shape) { return (std::ostringstream() << shape.param).str(); });

TEST_P(MlstmTest, IsAsAccurateAsPlainTorch) {
  const MlstmOptions options = options_of(GetParam());
  expect_accurate(fused(options), defined(options), GetParam(), 42);
}

TEST_P(MlstmTest, IsAsAccurateAsPlainTorchFromBFloat16) {
  const MlstmOptions options = options_of(GetParam());
  expect_accurate(fused(options), defined(options), GetParam(), 43, at::kBFloat16);
}

TEST_P(MlstmTest, HasTheSameBitsForAnyThreadsAndStrides) {
  const MlstmOptions options = options_of(GetParam());
  Tensors in = random_inputs(GetParam(), 44);
  const auto run = [&](int threads) {
    const testing::Threads limit(threads);
    return testing::outputs_and_gradients(fused(options), in);
  };
  const Tensors one = run(1);
  EXPECT_TRUE(testing::same_bits(one, run(4)));
  for (Tensor& x : in) x = testing::strided(x);
  EXPECT_TRUE(testing::same_bits(one, run(2)));
}

TEST_P(MlstmTest, AllFormsAgree) {
  const Shape& shape = GetParam();
  MlstmOptions options = options_of(shape);
  const Tensors in = random_inputs(shape, 45);
  const Tensors exact = testing::outputs_and_gradients(defined(options), to_double(in));
  expect_close(testing::outputs_and_gradients(parallel(options), to_double(in)), exact, 1e-9);
  for (const int64_t chunk : {1, 5, 16, 64, 130}) {
    options.chunk = chunk;
    expect_close(fused(options)(in), {exact[0], exact[1], exact[2], exact[3]}, shape.gates > 1 ? 1e-4 : 1e-5);
  }
}

TEST_P(MlstmTest, AStateThatIsHandedOnMakesTheWhole) {
  const Shape& shape = GetParam();
  const MlstmOptions options = options_of(shape);
  const Tensors in = random_inputs(shape, 46), whole = fused(options)(in);
  for (const int64_t step : {int64_t{1}, int64_t{50}}) {
    Tensors state(in.begin() + 5, in.end());
    for (int64_t first = 0; first < shape.T; first += step) {
      const int64_t last = std::min(first + step, shape.T);
      Tensors part;
      for (size_t i = 0; i < 5; ++i) part.push_back(in[i].slice(1, first, last));
      // The caller resets the state where a document begins, for each sequence by itself.
      const bool fresh = shape.documents && first > 0;
      if (fresh) {
        const Tensor& document = *options.document;
        const Tensor same = document.select(1, first) == document.select(1, first - 1);
        state = {state[0] * same.view({-1, 1, 1, 1}), state[1] * same.view({-1, 1, 1}), state[2] * same.view({-1, 1})};
      }
      part.insert(part.end(), state.begin(), state.end());
      MlstmOptions mine = options;
      if (mine.document) mine.document = mine.document->slice(1, first, last);
      const Tensors found = fused(mine)(part);
      EXPECT_LE(testing::largest(found[0] - whole[0].slice(1, first, last)), 1e-5 * testing::largest(whole[0]));
      state = {found[1], found[2], found[3]};
    }
    expect_close(state, {whole[1], whole[2], whole[3]}, 1e-5);
  }
}

TEST(Mlstm, GradientsOfTheDefinitionMatchFiniteDifferences) {
  const Shape shape{1, 6, 2, 3, 2, 4, true};
  const Tensors in = to_double(random_inputs(shape, 47));
  testing::expect_gradients(defined(), in);
  testing::expect_gradients(parallel(), in);
  const MlstmOptions packed{.document = at::tensor({4, 4, 7, 7, 7, 4}).view({1, 6})};
  testing::expect_gradients(defined(packed), in);
  testing::expect_gradients(fused(packed), in);  // float64: the blocked form
  testing::expect_gradients(fused(), {in.begin(), in.begin() + 5});
}

TEST(Mlstm, OneOutputAloneHasAGradient) {
  Shape shape{1, 90, 2, 8, 12, 32, true};
  for (const size_t output : {0, 1, 2, 3}) {
    const auto alone = [&](const testing::Function& function) {
      return [&, function](const Tensors& x) -> Tensors { return {function(x)[output]}; };
    };
    expect_accurate(alone(fused({.chunk = 32})), alone(defined()), shape, 48);
    shape.state = !shape.state;
    expect_accurate(alone(fused({.chunk = 32})), alone(defined()), shape, 49);
  }
}

TEST(Mlstm, TheStabiliserIsDifferentiated) {
  // Where |n . q| is close to 0 and m is large, 1e-6 determines the denominator, and so m determines the result.
  Tensors in = random_inputs({1, 40, 1, 4, 6, 16, true}, 49);
  in[0] = in[0] * 1e-6;
  in[3] = in[3] + 14;
  const Tensors found = testing::outputs_and_gradients(fused({.chunk = 16}), in);
  const Tensors exact = testing::outputs_and_gradients(defined(), to_double(in));
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_LE(testing::largest(found[i] - exact[i]), 2e-5 * testing::largest(exact[i])) << "tensor " << i;
  }
  EXPECT_GT(testing::largest(exact[7]), 0.01);  // of i
}

TEST(Mlstm, WithoutForgettingItIsALinearAttention) {
  // f = infinity keeps everything, i = 0 adds with weight 1: h = sum (q . k) v / max(|sum q . k|, 1).
  Tensors in = random_inputs({1, 150, 2, 8, 6}, 50);
  in[3].zero_();
  in[4].fill_(std::numeric_limits<float>::infinity());
  const Tensor s = (at::einsum("bthk,bshk->bhts", {in[0], in[1]}) / std::sqrt(8.0)).tril();
  const Tensor h =
      at::einsum("bhts,bshv->bthv", {s, in[2]}) / s.sum(-1).abs().clamp_min(1).transpose(1, 2).unsqueeze(3);
  const Tensors found = fused()(in);
  EXPECT_LE(testing::largest(found[0] - h), 2e-5 * testing::largest(h));
  EXPECT_LE(testing::largest(found[1] - at::einsum("bshk,bshv->bhkv", {in[1], in[2]})), 1e-4);
  EXPECT_EQ(testing::largest(found[3]), 0.0);  // m_0 = 0 takes part in the maximum
}

TEST(Mlstm, ExtremeGatesStayFinite) {
  for (const double i : {-100.0, 0.0, 100.0}) {
    for (const double f : {-100.0, 0.0, 100.0}) {
      Tensors in = random_inputs({1, 200, 2, 8, 12, 64, true}, 51);
      in[3] = in[3] + i;
      in[4] = in[4] + f;
      testing::for_each_target([&] {
        for (const Tensor& x : testing::outputs_and_gradients(fused(), in)) {
          EXPECT_TRUE(x.isfinite().all().item<bool>()) << "i " << i << " f " << f;
        }
      });
      const Tensors exact = defined()(to_double(in));
      expect_close(fused()(in), exact, 1e-4);  // denominators close to 0
    }
  }
}

TEST(Mlstm, LogitsOfTenThousandStayFinite) {
  Tensors in = random_inputs({1, 140, 2, 16, 16, 64, true}, 52);
  in[0] = in[0] * 1e4;
  for (const Tensor& x : testing::outputs_and_gradients(fused(), in)) EXPECT_TRUE(x.isfinite().all().item<bool>());
}

TEST(Mlstm, DocumentsAreReadAsIfAlone) {
  const Tensors in = random_inputs({1, 150, 2, 8, 12, 64, true}, 53);
  Tensor document = at::full({1, 150}, 900, at::kLong);
  document.slice(1, 41, 90).fill_(-3);  // then 900 again, which is another document
  const Tensor packed = fused({.document = document})(in)[0];
  for (const auto& [first, last] : {std::pair<int64_t, int64_t>{0, 41}, {41, 90}, {90, 150}}) {
    Tensors alone;
    for (size_t i = 0; i < (first == 0 ? 8 : 5); ++i) alone.push_back(i < 5 ? in[i].slice(1, first, last) : in[i]);
    EXPECT_LE(testing::largest(packed.slice(1, first, last) - fused()(alone)[0]), 1e-5 * testing::largest(packed));
  }
}

TEST(Mlstm, DocumentsMayBeAsShortAsOneToken) {
  Tensor document = at::arange(150, at::kLong);
  document.slice(0, 20, 60).fill_(1000);
  document.slice(0, 80).floor_divide_(30);
  document.slice(0, 149).fill_(2000);  // its m may be the 0 that every document begins with
  const MlstmOptions options{.chunk = 16, .document = document.view({1, 150})};
  for (const bool state : {false, true}) {
    expect_accurate(fused(options), defined(options), {1, 150, 2, 8, 12, 16, state}, 65);
  }
}

TEST(Mlstm, TheStateOfTheSchemaIsAListOfThree) {
  using Signature = std::tuple<Tensor, Tensor, Tensor, Tensor>(
      const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
      const std::optional<c10::List<Tensor>>&, int64_t, const std::optional<Tensor>&);
  const auto op = find_operator<Signature>("tamis::mlstm");
  const Tensors in = random_inputs({1, 40, 2, 8, 12, 64, true}, 66), expected = fused()(in);
  c10::List<Tensor> state({in[5], in[6]});
  const auto call = [&] { return op.call(in[0], in[1], in[2], in[3], in[4], state, 64, std::nullopt); };
  testing::expect_throws<c10::ValueError>(call, "mlstm: state must be (C, n, m), but has 2 tensors");
  state.push_back(in[7]);
  const auto [h, C, n, m] = call();
  EXPECT_TRUE(testing::same_bits({h, C, n, m}, expected));
}

TEST(Mlstm, NaNShowsInTheResult) {
  testing::for_each_target([] {
    for (const size_t argument : {0, 1, 2, 3, 4}) {
      Tensors in = random_inputs({1, 150, 1, 8, 8}, 54);
      in[argument].select(1, 70).fill_(kNaN);
      const Tensors found = fused()(in);
      EXPECT_TRUE(found[0].select(1, 70).isnan().all().item<bool>()) << "argument " << argument;
      EXPECT_TRUE(found[0].slice(1, 0, 64).isfinite().all().item<bool>()) << "argument " << argument;
      EXPECT_EQ(found[1].isnan().any().item<bool>(), argument != 0) << "argument " << argument;
    }
  });
}

TEST(Mlstm, OutputsDoNotDependOnWhatMemoryHeld) {
  const Tensors in = random_inputs({1, 150, 2, 9, 12, 64, true}, 55);
  const Tensors expected = testing::outputs_and_gradients(fused(), in);
  for (int round = 0; round < 3; ++round) {
    for (const Tensor& x : in) at::empty_like(x).fill_(kNaN);  // freed, so that the operator allocates this memory
    Tensors poison = random_inputs({1, 200, 2, 11, 30}, 56);   // leaves NaN in the threads' scratch memory
    for (Tensor& x : poison) x.fill_(kNaN);
    testing::outputs_and_gradients(fused(), poison);
    EXPECT_TRUE(testing::same_bits(expected, testing::outputs_and_gradients(fused(), in)));
  }
}

TEST(Mlstm, MemoryIsLinear) {  // tensors, and the scratch memory of one thread
  const auto peak = [](int64_t T) {
    const Tensors in = random_inputs({1, T, 2, 8, 16}, 57);
    const testing::PeakAllocation tensors;
    testing::outputs_and_gradients(fused(), in);
    const int64_t chunks = (T + 63) / 64;
    const kernels::MlstmHead head{
        .key_dim = 8, .value_dim = 16, .chunk_count = chunks, .tokens = T, .longest = 64, .continued = chunks};
    const int64_t scratch = kernels::mlstm_backward_scratch(head);
    // A state for each chunk, and the memory of one chunk.
    EXPECT_LE(scratch, (chunks + 2) * (8 * 32 + 2) + 2 * T + (int64_t{1} << 17));
    return tensors.peak_bytes() + 4 * scratch;
  };
  EXPECT_LE(static_cast<double>(peak(16384)), 4.4 * static_cast<double>(peak(4096)));
}

TEST(Mlstm, AnEmptyBatchAndNoTokensAreFine) {
  EXPECT_EQ(testing::outputs_and_gradients(fused(), random_inputs({0, 5, 2, 4, 3}, 58))[0].numel(), 0);
  const Tensors none = fused()(random_inputs({2, 0, 2, 4, 3}, 59));
  EXPECT_EQ(none[0].numel(), 0);
  EXPECT_EQ(testing::largest(none[1]), 0.0);
  const Tensors in = random_inputs({2, 0, 2, 4, 3, 64, true}, 60);
  const Tensors found = testing::outputs_and_gradients(fused(), in);
  for (size_t i = 0; i < 3; ++i) {  // the state is passed on, and so is its gradient
    EXPECT_TRUE(testing::same_bits(found[1 + i], in[5 + i]));
    const Tensor direction = testing::random_normal(in[5 + i].sizes(), 18 + i, at::kBFloat16).to(at::kFloat);
    EXPECT_LE(testing::largest(found[9 + i] - direction), 1e-5);
  }
}

TEST(Mlstm, OtherDtypesUseTheBlockedForm) {
  Tensors in = random_inputs({1, 20, 2, 4, 4}, 61);
  for (size_t i = 0; i < 3; ++i) in[i] = in[i].to(at::kHalf);
  const Tensors found = testing::outputs_and_gradients(fused(), in);
  EXPECT_EQ(found[0].scalar_type(), at::kHalf);
  EXPECT_EQ(found[1].scalar_type(), at::kFloat);
  expect_close(found, testing::outputs_and_gradients(defined(), in), 2e-3);
}

TEST(Mlstm, GatesMayBeStoredInBFloat16) {
  Tensors in = random_inputs({1, 90, 2, 16, 16}, 62, at::kBFloat16);
  in[3] = in[3].to(at::kBFloat16);
  in[4] = in[4].to(at::kBFloat16);
  testing::expect_as_accurate_as_plain(fused(), defined(), in);
}

TEST(Mlstm, MetaTensorsHaveTheShapesOfTheResult) {
  Tensors in = random_inputs({2, 9, 3, 4, 5}, 63, at::kBFloat16);
  for (Tensor& x : in) x = x.to(at::kMeta);
  const Tensors found = fused()(in);
  EXPECT_EQ(found[0].sizes(), at::IntArrayRef({2, 9, 3, 5}));
  EXPECT_EQ(found[0].scalar_type(), at::kBFloat16);
  EXPECT_EQ(found[1].sizes(), at::IntArrayRef({2, 3, 4, 5}));
  EXPECT_EQ(found[2].sizes(), at::IntArrayRef({2, 3, 4}));
  EXPECT_EQ(found[3].sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(found[3].scalar_type(), at::kFloat);
}

TEST(Mlstm, BadArgumentsAreNamed) {
  const Tensors in = random_inputs({2, 6, 2, 4, 3, 64, true}, 64);
  const auto expect_error = [&](size_t argument, const Tensor& bad, const std::string& text) {
    Tensors arguments = in;
    arguments[argument] = bad;
    testing::expect_throws<c10::ValueError>([&] { fused()(arguments); }, "mlstm: " + text);
  };
  expect_error(0, in[0].select(0, 0), "q must have 4 dimensions");
  expect_error(0, in[0].to(at::kLong), "q must be floating point");
  expect_error(0, in[0].slice(3, 0, 0), "q needs K >= 1");
  expect_error(1, in[1].slice(1, 0, 5), "k must have the shape [2, 6, 2, 4] (that of q), but has [2, 5, 2, 4]");
  expect_error(1, in[1].to(at::kDouble), "k must have the dtype of q");
  expect_error(2, in[2].slice(2, 0, 1), "v must have the shape of q");
  expect_error(3, in[3].slice(2, 0, 1), "i must have the shape [2, 6, 2]");
  expect_error(4, in[4].to(at::kHalf), "f must have the dtype of q, Float, or float32, but has Half");
  expect_error(5, in[5].slice(3, 0, 2), "C of the state must have the shape [2, 2, 4, 3]");
  expect_error(6, in[6].to(at::kDouble), "n of the state must be Float, but is Double");
  expect_error(7, in[7].slice(0, 0, 1), "m of the state must have the shape [2, 2]");
  const auto expect_option_error = [&](const MlstmOptions& options, const std::string& text) {
    testing::expect_throws<c10::ValueError>([&] { fused(options)(in); }, "mlstm: " + text);
  };
  expect_option_error({.chunk = 0}, "chunk must be at least 1, but is 0");
  expect_option_error({.document = at::zeros({2, 5}, at::kLong)}, "document must have the shape [2, 6]");
  expect_option_error({.document = at::zeros({2, 6})}, "document must hold integers");
}

}  // namespace
}  // namespace tamis::ops::mlstm_test
