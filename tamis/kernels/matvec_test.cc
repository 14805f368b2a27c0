#include "tamis/kernels/matvec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tamis/base/random.h"
#include "tamis/kernels/testing.h"

namespace tamis::kernels {
namespace {

using testing::for_each_target;

std::vector<float> random_numbers(int64_t count, uint64_t seed) {
  std::vector<float> numbers(count);
  Random random({seed});
  for (float& number : numbers) number = static_cast<float>(random.uniform() - 0.5);
  return numbers;
}

/// A matrix in one format, and its elements in float64.
struct Matrix {
  std::vector<uint8_t> data;
  std::vector<float> scale;
  std::vector<double> exact;
  WeightRows rows;

  Matrix(int64_t height, int64_t columns, WeightFormat format) {
    const std::vector<float> numbers = random_numbers(height * columns, 1);
    const auto append = [this](auto stored) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(&stored);
      data.insert(data.end(), bytes, bytes + sizeof stored);
    };
    for (int64_t row = 0; row < height; ++row) scale.push_back(0.25f + static_cast<float>(row));
    for (int64_t i = 0; i < height * columns; ++i) {
      if (format == WeightFormat::kFloat32) {
        append(numbers[i]);
        exact.push_back(numbers[i]);
      } else if (format == WeightFormat::kBFloat16) {
        const auto upper_half = static_cast<uint16_t>(std::bit_cast<uint32_t>(numbers[i]) >> 16);
        append(upper_half);
        exact.push_back(std::bit_cast<float>(static_cast<uint32_t>(upper_half) << 16));
      } else {
        const auto integer = static_cast<int8_t>(std::lround(254 * numbers[i]));
        append(integer);
        exact.push_back(static_cast<double>(integer) * scale[i / columns]);
      }
    }
    rows = {.data = data.data(),
            .scale = format == WeightFormat::kInt8 ? scale.data() : nullptr,
            .columns = columns,
            .format = format};
  }
};

void expect_near_the_exact_product(const Matrix& matrix, int64_t height, int64_t count) {
  const int64_t columns = matrix.rows.columns;
  const std::vector<float> x = random_numbers(count * columns, 2);
  std::vector<float> prepared(prepared_vectors(columns, count));
  std::vector<float> y(count * height, std::numeric_limits<float>::quiet_NaN());
  prepare_vectors(matrix.rows.format, columns, x.data(), columns, count, prepared.data());
  multiply_rows(matrix.rows, 0, height, prepared.data(), count, y.data(), height);
  // Rounding of the sums, and for int8 that of x to 15 bits.
  const double share = matrix.rows.format == WeightFormat::kInt8 ? 1e-4 : 1e-6;
  for (int64_t v = 0; v < count; ++v) {
    for (int64_t row = 0; row < height; ++row) {
      double sum = 0, magnitude = 0;
      for (int64_t column = 0; column < columns; ++column) {
        const double product = matrix.exact[row * columns + column] * x[v * columns + column];
        sum += product;
        magnitude += std::abs(product);
      }
      ASSERT_NEAR(y[v * height + row], sum, share * magnitude) << "vector " << v << " of " << count << ", row " << row;
    }
  }
}

TEST(MultiplyRows, IsNearTheProductInFloat64) {
  constexpr int64_t kHeight = 13;
  for (const WeightFormat format : {WeightFormat::kFloat32, WeightFormat::kBFloat16, WeightFormat::kInt8}) {
    for (const int64_t columns : {1, 16, 63, 200}) {
      const Matrix matrix(kHeight, columns, format);
      for_each_target([&] {
        for (const int64_t count : {1, 3, 8, 17}) {
          SCOPED_TRACE(columns);
          expect_near_the_exact_product(matrix, kHeight, count);
        }
      });
    }
  }
}

}  // namespace
}  // namespace tamis::kernels
