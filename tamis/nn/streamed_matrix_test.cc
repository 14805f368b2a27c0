#include "tamis/nn/streamed_matrix.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tamis/ops/testing.h"

namespace tamis::nn {
namespace {

using at::Tensor;
using ops::testing::random_normal;

enum class Format { kFloat32, kBFloat16, kInt8 };

StreamedMatrix make_matrix(int64_t rows, int64_t columns, Format format) {
  const Tensor weight = random_normal({rows, columns}, 1);
  return {format == Format::kBFloat16 ? weight.to(at::kBFloat16) : weight, format == Format::kInt8};
}

/// W x for the rows of x, computed for rows [first, last).
Tensor product(const StreamedMatrix& matrix, const Tensor& x_nC, int64_t first, int64_t last) {
  const kernels::WeightRows rows = *matrix.rows();
  const int64_t count = x_nC.size(0);
  const Tensor prepared = at::empty({kernels::prepared_vectors(rows.columns, count)});
  kernels::prepare_vectors(rows.format, rows.columns, x_nC.const_data_ptr<float>(), x_nC.stride(0), count,
                           prepared.data_ptr<float>());
  const Tensor y = at::full({count, last - first}, std::numeric_limits<float>::quiet_NaN());
  kernels::multiply_rows(rows, first, last, prepared.const_data_ptr<float>(), count, y.data_ptr<float>(), y.stride(0));
  return y;
}

class StreamedMatrixTest : public ::testing::TestWithParam<std::tuple<Format, std::pair<int64_t, int64_t>>> {};

TEST_P(StreamedMatrixTest, IsNearTheProductInFloat64) {
  const auto [format, shape] = GetParam();
  const auto [rows, columns] = shape;
  const StreamedMatrix matrix = make_matrix(rows, columns, format);
  const Tensor x = random_normal({kernels::kMostVectors, columns}, 2);
  const Tensor exact = x.to(at::kDouble).matmul(matrix.dense(at::kDouble).t());
  const Tensor magnitude = x.to(at::kDouble).abs().matmul(matrix.dense(at::kDouble).abs().t());
  // Rounding of the sums, and for int8 that of x to 15 bits.
  const double share = format == Format::kInt8 ? 6e-5 : 5e-7;
  ops::testing::for_each_target([&] {
    for (const int64_t count : {1, 2, 3, 7, 8, 9, 16, 17, 64}) {
      const Tensor found = product(matrix, x.narrow(0, 0, count), 0, rows);
      const Tensor off = (found - exact.narrow(0, 0, count)).abs() / (magnitude.narrow(0, 0, count) + 1e-30);
      EXPECT_LT(off.max().item<double>(), share) << count;
    }
  });
}

TEST_P(StreamedMatrixTest, ManyVectorsHaveTheSameBitsInAnyCompany) {
  const auto [format, shape] = GetParam();
  const auto [rows, columns] = shape;
  const StreamedMatrix matrix = make_matrix(rows, columns, format);
  const Tensor x = random_normal({40, columns}, 2);
  ops::testing::for_each_target([&] {
    const Tensor all = product(matrix, x, 0, rows);
    for (const int64_t first : {0, 9, 31}) {
      EXPECT_TRUE(product(matrix, x.narrow(0, first, 9), 0, rows).equal(all.narrow(0, first, 9)));
    }
    EXPECT_TRUE(product(matrix, x, rows / 3, rows).equal(all.slice(1, rows / 3)));
  });
}

TEST_P(StreamedMatrixTest, ARowHasTheSameBitsInAnyCompany) {
  const auto [format, shape] = GetParam();
  const auto [rows, columns] = shape;
  const StreamedMatrix matrix = make_matrix(rows, columns, format);
  const Tensor x = random_normal({5, columns}, 2);
  ops::testing::for_each_target([&] {
    const Tensor all = product(matrix, x, 0, rows);
    for (int64_t v = 0; v < 5; ++v) {
      const Tensor alone = product(matrix, x.narrow(0, v, 1), 0, rows);
      EXPECT_TRUE(alone.equal(all.narrow(0, v, 1)));
      for (int64_t row = 0; row < rows; row += 3) {
        const int64_t last = std::min(rows, row + 3);
        EXPECT_TRUE(product(matrix, x.narrow(0, v, 1), row, last).equal(alone.slice(1, row, last)));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Formats, StreamedMatrixTest,
                         ::testing::Combine(::testing::Values(Format::kFloat32, Format::kBFloat16, Format::kInt8),
                                            ::testing::Values(std::pair<int64_t, int64_t>{1, 1},
                                                              std::pair<int64_t, int64_t>{13, 67},
                                                              std::pair<int64_t, int64_t>{160, 256},
                                                              std::pair<int64_t, int64_t>{21, 1024})));

TEST(StreamedMatrix, Int8IsWithinHalfAStepOfEachRow) {
  Tensor weight = random_normal({20, 50}, 3);
  weight[4].zero_();
  const StreamedMatrix matrix(weight, /*int8=*/true);
  const Tensor step = weight.abs().amax(1, true) / 127;
  EXPECT_TRUE(((matrix.dense(at::kFloat) - weight).abs() <= step * 0.5001).all().item<bool>());
  EXPECT_TRUE(matrix.dense(at::kFloat)[4].eq(0).all().item<bool>());
  EXPECT_EQ(matrix.bytes(), 20 * 50 + 20 * 4);
}

TEST(StreamedMatrix, LargestIntegersDoNotOverflow) {
  for (const int64_t columns : {1024, 2064, 20'000}) {
    const StreamedMatrix matrix(at::ones({4, columns}), /*int8=*/true);
    const Tensor found = product(matrix, at::full({1, columns}, 3.0f), 0, 4);
    EXPECT_TRUE(at::allclose(found, at::full({1, 4}, 3.0 * static_cast<double>(columns), at::kFloat), 1e-5));
  }
}

TEST(StreamedMatrix, NaNStaysNaN) {
  for (const Format format : {Format::kFloat32, Format::kBFloat16, Format::kInt8}) {
    Tensor x = random_normal({1, 67}, 2);
    x[0][65] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(product(make_matrix(9, 67, format), x, 0, 9).isnan().all().item<bool>());
  }
}

TEST(StreamedMatrix, SharesWhatItNeedNotConvert) {
  const Tensor weight = random_normal({3, 4}, 3);
  const StreamedMatrix matrix(weight, /*int8=*/false);
  EXPECT_EQ(matrix.dense(at::kFloat).const_data_ptr(), weight.const_data_ptr());
  EXPECT_FALSE(StreamedMatrix(weight.to(at::kDouble), /*int8=*/false).rows());
}

}  // namespace
}  // namespace tamis::nn
