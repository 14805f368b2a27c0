// Softmax attention over parts of the keys; merged, the parts are the attention over all keys. On the CPU or
// TAMIS_TEST_DEVICE.

#include "tamis/ops/softmax_attention/softmax_attention_part.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "tamis/ops/blocked.h"
#include "tamis/ops/softmax_attention/softmax_attention_blocked.h"
#include "tamis/ops/testing.h"

namespace tamis::ops {
namespace {

using at::Tensor;
using testing::Tensors;

struct PartShape {
  int64_t B, before, queries, H, K, V;  // keys before the first query, in parts of `part`; then the queries' own keys
  int64_t part;
  bool scales = false, documents = false;

  int64_t keys() const { return before + queries; }
};

/// Parts that are shorter and longer than the queries, a single query, panels that are not full.
const std::vector<PartShape> kPartShapes = {
    {1, 1, 1, 1, 8, 8, 1},
    {2, 192, 64, 2, 16, 32, 64},
    {1, 150, 37, 3, 20, 9, 50},
    {2, 60, 200, 2, 16, 16, 20},
    {1, 300, 90, 2, 16, 16, 100, true},
    {2, 210, 70, 2, 16, 16, 70, false, true},
    {1, 130, 65, 2, 8, 8, 65, true, true},
};

/// Documents that end within a part, at its end and within the queries; some queries see no key of some parts.
Tensor documents_of(const PartShape& shape) {
  const int64_t T = shape.keys();
  Tensor document = at::full({shape.B, T}, 7, at::kLong);
  document.slice(1, T / 3, shape.before).fill_(3);
  document.slice(1, shape.before + shape.queries / 2).fill_(1);
  return document;
}

/// What the device and dtype have, or the blocked form in its place.
struct PartForm {
  decltype(&softmax_attention_part) forward;
  decltype(&softmax_attention_part_backward) backward;
};

const PartForm kChosen = {softmax_attention_part, softmax_attention_part_backward};
const PartForm kBlocked = {softmax_attention_part_blocked, softmax_attention_part_backward_blocked};

/// q, k, v and, with scales, query_scale.
Tensors part_inputs(const PartShape& shape, uint64_t seed, at::ScalarType dtype) {
  Tensors in = {testing::random_normal({shape.B, shape.queries, shape.H, shape.K}, seed, dtype),
                testing::random_normal({shape.B, shape.keys(), shape.H, shape.K}, seed + 1, dtype),
                testing::random_normal({shape.B, shape.keys(), shape.H, shape.V}, seed + 2, dtype)};
  if (shape.scales) in.push_back(testing::random_normal({shape.B, shape.queries, shape.H}, seed + 3));
  return in;
}

ScaledAttentionOptions options_for(const PartShape& shape, const Tensors& in) {
  ScaledAttentionOptions options{.scale = 0.3};
  if (shape.scales) options.query_scale = in[3];
  if (shape.documents) options.document = documents_of(shape);
  return options;
}

Tensors on_device(Tensors in) {
  for (Tensor& x : in) x = x.to(testing::test_device());
  return in;
}

/// The options over the keys [first, first + count) before the queries.
ScaledAttentionOptions options_of_part(const PartShape& shape, const Tensors& in, int64_t first, int64_t count) {
  ScaledAttentionOptions options = options_for(shape, in);
  options.keys_before = first < shape.before;
  if (options.document) {
    const auto part = [&](int64_t at, int64_t length) { return options.document->narrow(1, at, length); };
    options.document =
        options.keys_before ? at::cat({part(first, count), part(shape.before, shape.queries)}, 1) : part(first, count);
  }
  return testing::on_test_device(options);
}

/// Calls visit(first, count) for the queries' own keys and then for each part before them.
template <typename Visit>
void for_each_part(const PartShape& shape, const Visit& visit) {
  visit(shape.before, shape.queries);
  for (int64_t first = 0; first < shape.before; first += shape.part) visit(first, shape.part);
}

SoftmaxAttentionPart whole_of(const PartForm& form, const PartShape& shape, const Tensors& in) {
  std::optional<SoftmaxAttentionPart> whole;
  for_each_part(shape, [&](int64_t first, int64_t count) {
    const SoftmaxAttentionPart part = form.forward(in[0], in[1].narrow(1, first, count), in[2].narrow(1, first, count),
                                                   options_of_part(shape, in, first, count));
    whole = whole ? merged(*whole, part) : part;
  });
  return *whole;
}

testing::Function in_parts(const PartForm& form, const PartShape& shape) {
  return testing::differentiable({
      .forward = [=](const Tensors& in) -> Tensors { return {whole_of(form, shape, in).out.to(in[2].scalar_type())}; },
      .backward = [=](const Tensors& grad, const Tensors& in) -> Tensors {
        const SoftmaxAttentionPart whole = whole_of(form, shape, in);
        Tensors sums;
        for (const Tensor& x : in) sums.push_back(at::zeros(x.sizes(), widened(x).options()));
        for_each_part(shape, [&](int64_t first, int64_t count) {
          const auto [dq, dk, dv, d_scale] =
              form.backward(grad[0], whole, in[0], in[1].narrow(1, first, count), in[2].narrow(1, first, count),
                            options_of_part(shape, in, first, count));
          sums[0].add_(dq);
          sums[1].narrow(1, first, count).copy_(dk);
          sums[2].narrow(1, first, count).copy_(dv);
          if (shape.scales) sums[3].add_(d_scale);
        });
        for (size_t i = 0; i < in.size(); ++i) sums[i] = sums[i].to(in[i].scalar_type());
        return sums;
      },
  });
}

TEST(SoftmaxAttentionPart, MergedPartsAreAsAccurateAsPlainTorch) {
  for (const PartShape& shape : kPartShapes) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(::testing::Message() << "keys " << shape.keys() << ", queries " << shape.queries << ", " << dtype);
      const testing::Function defined = [=](const Tensors& in) -> Tensors {
        return {reference::scaled_attention(in[0], in[1], in[2], options_for(shape, in))};
      };
      std::vector<Tensors> samples;
      for (uint64_t i = 0; i < 4; ++i) samples.push_back(part_inputs(shape, 42 + 100 * i, dtype));
      if (testing::test_device().is_cpu()) {
        testing::expect_as_accurate_as_plain(in_parts(kChosen, shape), defined, samples);
      }
      // Few queries have the largest errors, which vary from sample to sample by a factor of four in plain torch, too,
      // and the products are torch's, which differ between processors: so there are samples of about 4,096 rows of
      // queries together, at least 32 and at most 160.
      const int64_t rows = shape.B * shape.queries * shape.H;
      const auto enough = static_cast<uint64_t>(std::clamp<int64_t>(4096 / rows, 32, 160));
      for (uint64_t i = 4; i < enough; ++i) samples.push_back(part_inputs(shape, 42 + 100 * i, dtype));
      testing::expect_as_accurate_as_plain_once(in_parts(kBlocked, shape), defined, samples);
    }
  }
}

TEST(SoftmaxAttentionPart, InFloat64IsTheDefinition) {
  if (widest_dtype(testing::test_device()) != at::kDouble) GTEST_SKIP() << "the device has no float64";
  for (const PartShape& shape : kPartShapes) {
    SCOPED_TRACE(::testing::Message() << "keys " << shape.keys() << ", queries " << shape.queries);
    Tensors in = part_inputs(shape, 3, at::kDouble);
    for (Tensor& x : in) x = x.to(at::kDouble).requires_grad_();
    const Tensor found = in_parts(kChosen, shape)(in)[0];
    const Tensor expected = reference::scaled_attention(in[0], in[1], in[2], options_for(shape, in));
    const Tensor weight = testing::random_normal(expected.sizes(), 9, at::kDouble);
    const auto gradients = [&](const Tensor& out) { return torch::autograd::grad({(out * weight).sum()}, in); };
    EXPECT_LE(testing::largest(found - expected), 1e-13);
    const Tensors of_found = gradients(found), of_expected = gradients(expected);
    for (size_t i = 0; i < in.size(); ++i) {
      EXPECT_LE(testing::largest(of_found[i] - of_expected[i]), 1e-12) << "gradient of input " << i;
    }
  }
}

TEST(SoftmaxAttentionPart, AQueryWithoutKeysAddsNothing) {
  const PartShape shape{1, 40, 30, 2, 8, 8, 40, false, true};
  for (const PartForm& form : {kChosen, kBlocked}) {
    const Tensors in = on_device(part_inputs(shape, 5, at::kFloat));
    ScaledAttentionOptions options = options_of_part(shape, in, 0, 40);
    options.document->narrow(1, 40, 30).fill_(100);  // of the queries: a document without keys
    const SoftmaxAttentionPart none = form.forward(in[0], in[1].narrow(1, 0, 40), in[2].narrow(1, 0, 40), options);
    EXPECT_TRUE(none.out.eq(0).all().item<bool>());
    const SoftmaxAttentionPart own = form.forward(in[0], in[1].narrow(1, 40, 30), in[2].narrow(1, 40, 30), {});
    EXPECT_LE(testing::largest(merged(own, none).out - own.out), 2.5e-7);
    EXPECT_LE(testing::largest(merged(none, own).out - own.out), 2.5e-7);
    EXPECT_TRUE(merged(none, none).out.eq(0).all().item<bool>()) << "not NaN";
  }
}

TEST(SoftmaxAttentionPart, WithoutKeysEverythingIsZero) {
  const Tensor q = testing::random_normal({2, 5, 2, 8}, 1).to(testing::test_device()), none = q.narrow(1, 0, 0);
  for (const PartForm& form : {kChosen, kBlocked}) {
    const SoftmaxAttentionPart part = form.forward(q, none, none, {.keys_before = true});
    EXPECT_EQ(part.out.sizes(), q.sizes());
    EXPECT_EQ(testing::largest(part.out) + testing::largest(part.statistics.select(3, 1)), 0);
    const auto [dq, dk, dv, d_scale] = form.backward(q, part, q, none, none, {.keys_before = true});
    EXPECT_EQ(dq.sizes(), q.sizes());
    EXPECT_EQ(testing::largest(dq), 0);
    EXPECT_EQ(dk.numel() + dv.numel() + d_scale.numel(), 0);
  }
}

TEST(SoftmaxAttentionPart, RefusesAWindowOverKeysBeforeTheQueries) {
  const Tensor x = at::zeros({1, 4, 1, 8});
  EXPECT_THROW(softmax_attention_part(x, x, x, {.window = 2, .keys_before = true}), c10::ValueError);
}

TEST(SoftmaxAttentionPart, VeryNegativeScoresAreKeptBesideAPartWithoutKeys) {
  const PartShape shape{1, 40, 30, 2, 8, 8, 40, false, true};
  Tensors in = part_inputs(shape, 6, at::kFloat);
  in.push_back(at::full({1, 30, 2}, -1000.0f));
  in[0] = in[0].abs();
  in[1] = in[1].abs().mul_(0.01).add_(1);  // so that the weights of a query's keys are of similar size
  in = on_device(in);
  for (const PartForm& form : {kChosen, kBlocked}) {
    ScaledAttentionOptions options = options_of_part(shape, in, 0, 40);
    options.document->narrow(1, 40, 30).fill_(100);  // of the queries: a document without keys
    options.query_scale = in[3];
    const auto of = [&](int64_t first, int64_t count, const ScaledAttentionOptions& part) {
      return form.forward(in[0], in[1].narrow(1, first, count), in[2].narrow(1, first, count), part);
    };
    const SoftmaxAttentionPart none = of(0, 40, options), own = of(40, 30, {.query_scale = in[3]});
    EXPECT_LE(own.statistics.select(3, 0).max().item<double>(), -500);
    EXPECT_LE(own.statistics.select(3, 1).min().item<double>(), 0.5) << "several keys of similar weight";
    EXPECT_LE(testing::largest(merged(none, own).out - own.out), 2.5e-7);
    EXPECT_EQ(testing::largest(merged(own, none).statistics - own.statistics), 0);
  }
}

}  // namespace
}  // namespace tamis::ops
