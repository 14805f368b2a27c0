// Exact skipping: the same bits with and without it, whatever the keys.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tamis/ops/screening/screening_cpu.h"
#include "tamis/ops/screening/screening_cpu_testing.h"
#include "tamis/ops/screening/screening_state.h"
#include "tamis/ops/testing.h"

namespace tamis::ops {
namespace {

using at::Tensor;
using kernels::Skipping;
using testing::Tensors;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// q, k, v, s_w, s_r, gate of heads with infinite windows. Queries and keys are close to `directions` directions, at a
/// distance of about `spread`.
Tensors clustered_inputs(int64_t T, std::vector<double> accepts, int64_t directions, double spread, uint64_t seed,
                         int64_t queries = -1, int64_t K = 16, int64_t V = 24) {
  const auto H = static_cast<int64_t>(accepts.size());
  const int64_t T_q = queries < 0 ? T : queries;
  const Tensor centres = testing::random_normal({directions, K}, seed);
  const auto rows = [&](uint64_t seed_of_rows) {
    const Tensor choice = (testing::random_normal({1, T, H}, seed_of_rows).abs() * static_cast<double>(directions) / 2)
                              .to(at::kLong)
                              .clamp_max(directions - 1);
    return centres.index({choice}) + spread * testing::random_normal({1, T, H, K}, seed_of_rows + 1);
  };
  Tensor s_r = at::empty({H});
  for (int64_t h = 0; h < H; ++h) s_r[h] = std::log(accepts[h] / (1 - accepts[h]));
  return {rows(seed + 1).narrow(1, T - T_q, T_q).contiguous(),
          rows(seed + 3),
          testing::random_normal({1, T, H, V}, seed + 5),
          at::full({H}, 95.0),
          s_r,
          testing::random_normal({1, T_q, H, V}, seed + 6)};
}

/// Output, gradients of q, k, v, s_w, s_r and gate, and the output that the backward pass writes.
Tensors results(const Tensors& in, Skipping skipping, kernels::PassCounts* skipped = nullptr,
                ScreeningOptions options = {}) {
  options.gate = in[5];
  const SkippingControl control = {skipping, skipped};
  const Tensor out = screening_cpu(in[0], in[1], in[2], in[3], in[4], options, control);
  const Tensor grad = testing::random_normal(out.sizes(), 99).to(out.scalar_type());
  const auto [dq, dk, dv, dgate] = empty_gradients(in[0], in[1], in[2], in[5]);
  const Tensor again = at::empty_like(out);
  const auto [ds_w, ds_r] = screening_backward_cpu(grad, in[0], in[1], in[2], in[3], in[4], options,
                                                   {dq, dk, dv, dgate}, again, {skipping, nullptr});
  return {out, dq, dk, dv, ds_w, ds_r, *dgate, again};
}

/// True if both have NaN in the same places and the same bits elsewhere.
void expect_same(const Tensors& found, const Tensors& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t t = 0; t < found.size(); ++t) {
    EXPECT_TRUE(found[t].isnan().equal(expected[t].isnan())) << "result " << t;
    EXPECT_TRUE(testing::same_bits(at::nan_to_num(found[t]), at::nan_to_num(expected[t]))) << "result " << t;
  }
}

void expect_exact(const Tensors& in, const ScreeningOptions& options = {}) {
  testing::for_each_target([&] {
    const Tensors dense = results(in, Skipping::kNever, nullptr, options);
    expect_same(results(in, Skipping::kAlways, nullptr, options), dense);
    expect_same(results(in, Skipping::kAdaptive, nullptr, options), dense);
  });
}

TEST(ScreeningSkipping, BitsDoNotDependOnIt) {
  expect_exact(clustered_inputs(2600, {0.02, 0.3, 0.9, 0.9995}, 40, 0.2, 1));
  expect_exact(clustered_inputs(2100, {0.5}, 9, 0.01, 2, /*queries=*/-1, /*K=*/7, /*V=*/5));
  expect_exact(clustered_inputs(1500, {0.05, 0.4}, 1, 3.0, 3));  // nearly random
}

TEST(ScreeningSkipping, BitsDoNotDependOnItInOtherDtypes) {
  Tensors in = clustered_inputs(2200, {0.1, 0.6}, 40, 0.2, 4);
  for (const size_t i : {0, 1, 2, 5}) in[i] = in[i].to(at::kBFloat16);
  expect_exact(in);
  for (const size_t i : {0, 1, 2, 5}) in[i] = in[i].to(at::kDouble);
  expect_exact(in);
}

TEST(ScreeningSkipping, LongSequencesUseEveryLevel) {
  // 140,000 keys: two buckets of 65,536, nodes of 4,096, and a remainder.
  const Tensors in = clustered_inputs(140'000, {0.03}, 300, 0.1, 5, /*queries=*/70);
  kernels::PassCounts skipped, adaptive;
  const Tensors dense = results(in, Skipping::kNever), found = results(in, Skipping::kAlways, &skipped);
  expect_same(found, dense);
  expect_same(results(in, Skipping::kAdaptive, &adaptive), dense);
  EXPECT_LT(skipped.similarities + skipped.bounds, 0.2 * skipped.visible);
  EXPECT_LT(adaptive.similarities, adaptive.visible);
}

TEST(ScreeningSkipping, SimilaritiesAtTheThresholdAreDecidedAlike) {
  // Keys whose similarity to their query is 1 - r, up to a few roundings on either side; r is chosen to make it so.
  constexpr int64_t T = 1400, K = 16;
  for (const double r : {0.5, 0.013, 0.87}) {
    Tensors in = clustered_inputs(T, {r}, 20, 0.0, 6);
    const Tensor unit = in[0] / in[0].norm(2, {-1}, true);
    Tensor across = testing::random_normal({1, T, 1, K}, 7);
    across = across - unit * (across * unit).sum(-1, true);
    across = across / across.norm(2, {-1}, true);
    const Tensor nudge = at::arange(T).remainder(17).sub(8).mul(6e-8).view({1, T, 1, 1});
    const Tensor cosine = 1 - r + nudge;
    in[1] = unit * cosine + across * (1 - cosine * cosine).sqrt();
    expect_exact(in);
  }
}

/// A query at the angle `beyond` from the last of `keys` accepts that key by the smallest margin, or rejects it by the
/// smallest: the bound of a node that ends with this key is as tight as possible. No other key is near, so the result
/// shows whether the key was accepted.
void expect_exact_at_the_edge(const Tensor& keys, const Tensor& last, const Tensor& across, double r) {
  const int64_t T = keys.size(0), K = keys.size(1);
  // Steps of one rounding, and of one thousandth, on either side of the threshold.
  const Tensor nudge = at::arange(T).remainder(41).sub(20).mul(6e-8).view({T, 1}) *
                       at::pow(10.0, at::arange(T).remainder(5)).view({T, 1});
  const Tensor cosine = (1 - r + nudge).clamp_max(1);
  const Tensor q = cosine * last + (1 - cosine * cosine).sqrt() * across;
  const auto heads = [&](const Tensor& x) { return x.to(at::kFloat).view({1, T, 1, x.size(1)}).contiguous(); };
  const Tensors in = {heads(q),
                      heads(keys),
                      testing::random_normal({1, T, 1, 8}, 20),
                      at::full({1}, 95.0),
                      at::full({1}, std::log(r / (1 - r))),
                      testing::random_normal({1, T, 1, 8}, 21)};
  ASSERT_EQ(K, 16);
  expect_exact(in);
  const Tensor taken = results(in, Skipping::kAlways)[0].ne(0).any(-1).sum();
  EXPECT_GT(taken.item().toLong(), T / 5) << "some are accepted";
  EXPECT_LT(taken.item().toLong(), 4 * T / 5) << "some are not";
}

TEST(ScreeningSkipping, TightBoundsAreDecidedAlike) {
  constexpr int64_t T = 1400;
  const Tensor axes = at::eye(16, at::kDouble);
  for (const double r : {0.5, 0.02, 0.9}) {
    // Nodes that repeat one key: a node's bound is the similarity itself.
    const Tensor which = at::arange(T).mul(7).remainder(8);
    const Tensor repeated = axes.index({which});
    expect_exact_at_the_edge(repeated, axes.index({which.flip(0)}), axes.index({which.flip(0) + 8}), r);
    // Keys along an arc, and queries in its plane beyond its end.
    const Tensor angle = at::arange(T).mul(37).remainder(T).to(at::kDouble).mul(0.3 / (T - 1)).unsqueeze(1);
    const Tensor arc = angle.cos() * axes[0] + angle.sin() * axes[1];
    const Tensor end = std::cos(0.3) * axes[0] + std::sin(0.3) * axes[1];
    const Tensor onward = std::cos(0.3) * axes[1] - std::sin(0.3) * axes[0];
    expect_exact_at_the_edge(arc, end.expand({T, 16}), onward.expand({T, 16}), r);
  }
}

TEST(ScreeningSkipping, ZeroRowsAndShortRows) {
  Tensors in = clustered_inputs(1400, {0.2, 0.97, 1 - 1e-9}, 30, 0.1, 8);
  in[0].slice(1, 5, 1400, 11).zero_();
  in[1].slice(1, 3, 1400, 7).zero_();
  in[1].slice(1, 64, 160).zero_();    // whole tiles
  in[1].slice(1, 500, 900) *= 1e-13;  // below the smallest norm: shorter than a unit vector
  in[0].slice(1, 1000, 1300) *= 1e-13;
  expect_exact(in);
  in[4].fill_(std::numeric_limits<float>::infinity());  // r = 1
  expect_exact(in);
}

TEST(ScreeningSkipping, NaNIsNeverSkipped) {
  const Tensors clean = clustered_inputs(1400, {0.05, 0.5}, 30, 0.05, 9);
  for (const size_t argument : {0, 1}) {
    Tensors in = clean;
    in[argument] = clean[argument].clone();
    in[argument].select(1, 700).fill_(kNaN);
    in[argument].select(1, 300).select(-1, 3).fill_(std::numeric_limits<double>::infinity());
    expect_exact(in);
    const Tensor out = results(in, Skipping::kAlways)[0];
    EXPECT_TRUE(out.select(1, argument == 0 ? 700 : 1399).isnan().all().item().toBool()) << "argument " << argument;
  }
  Tensors in = clean;
  in[4] = at::full({2}, kNaN);
  expect_exact(in);
}

TEST(ScreeningSkipping, DocumentsLastQueriesAndFiniteWindows) {
  const Tensors in = clustered_inputs(1400, {0.1, 0.6}, 30, 0.1, 10);
  expect_exact(in, {.document = at::arange(1400).floor_divide(500).view({1, 1400})});
  expect_exact(clustered_inputs(1400, {0.1, 0.6}, 30, 0.1, 11, /*queries=*/333));
  Tensors finite = in;
  finite[3] = at::tensor({std::log(50'000.0), std::log(1100.0)});  // longer than the sequence, and shorter
  expect_exact(finite);
}

TEST(ScreeningSkipping, RandomVectorsGiveUpAndClustersPay) {
  kernels::PassCounts random, clustered;
  results(clustered_inputs(6000, {0.5}, 1, 1e3, 12, -1, 16, 8), Skipping::kAdaptive, &random);
  results(clustered_inputs(6000, {0.05}, 50, 0.1, 13, -1, 16, 8), Skipping::kAdaptive, &clustered);
  EXPECT_LT(random.bounds, 0.02 * random.visible);
  EXPECT_LT(clustered.bounds + clustered.similarities, 0.5 * clustered.visible);
}

TEST(ScreeningSkipping, DecodingDecidesLikeTheWholeSequence) {
  const Tensors in = clustered_inputs(3500, {0.05, 0.6}, 30, 0.1, 14);
  const Tensor whole = results(in, Skipping::kNever)[0];
  ScreeningState state(in[3], in[4], 16, 24);
  const auto step = [&](int64_t first, int64_t last) {
    const auto part = [&](size_t i) { return in[i].slice(1, first, last); };
    return state.step(part(0), part(1), part(2), part(5));
  };
  // The same kernel on the same keys: chunks as long as a block give the same bits.
  for (int64_t first = 0; first < 3200; first += 800) {
    EXPECT_TRUE(testing::same_bits(step(first, first + 800), whole.slice(1, first, first + 800))) << first;
  }
  ScreeningState fork = state.fork();
  for (int64_t i = 3200; i < 3500; ++i) {
    EXPECT_LE(testing::largest(step(i, i + 1) - whole.slice(1, i, i + 1)), 1e-5) << i;
  }
  const auto last = [&](size_t i) { return in[i].slice(1, 3200, 3500); };
  EXPECT_LE(testing::largest(fork.step(last(0), last(1), last(2), last(5)) - whole.slice(1, 3200, 3500)), 1e-5);
}

}  // namespace
}  // namespace tamis::ops
