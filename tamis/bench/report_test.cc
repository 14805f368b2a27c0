#include "tamis/bench/report.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "tamis/base/testing.h"
#include "tamis/bench/dtypes.h"
#include "tamis/bench/options.h"

namespace tamis::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Report small_report() {
  Peaks peaks({.matmul_size = 32, .seconds = 0, .read_bytes = 1 << 12});
  peaks.measure(std::array{at::kFloat, at::kBFloat16});
  Report report{.bench = "head", .options = {{"vocab", 7}}, .peaks = peaks};
  const int64_t threads = at::get_num_threads();
  Row row{.what = "loss", .dtype = at::kBFloat16, .threads = threads, .tokens = 100};
  row.time = {
      .median = 0.5, .minimum = 0.4, .maximum = 0.7, .lower_quartile = 0.45, .upper_quartile = 0.55, .calls = 9};
  row.time.page_faults = 3;
  row.tokens_per_call = 100;
  row.flops = peaks.flops(at::kBFloat16, threads) / 8;
  row.error = 1.5e-3;
  row.ratio = Ratio{.value = 1.5, .to = "GEMMs"};
  row.details["gradients"] = true;
  report.rows = {row};
  report.notes = {"counted: all"};
  return report;
}

TEST(Report, WritesJson) {
  const nlohmann::json json = to_json(small_report());
  for (const char* key : {"bench", "tamis", "date", "machine", "options", "peaks", "rows", "notes"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["peaks"]["matmul"].size(), 2u);
  EXPECT_GT(json["peaks"]["read"][0]["bytes_per_second"], 0);
  const auto& row = json["rows"][0];
  EXPECT_EQ(row["dtype"], "bfloat16");
  EXPECT_EQ(row["seconds"]["lower_quartile"], 0.45);
  EXPECT_EQ(row["tokens_per_second"], 200);
  EXPECT_NEAR(row["share_of_peak"], 0.25, 1e-12);
  EXPECT_EQ(row["error"], 1.5e-3);
  EXPECT_EQ(row["ratio"], (nlohmann::json{{"to", "GEMMs"}, {"value", 1.5}}));
  EXPECT_EQ(row["gradients"], true);
  EXPECT_FALSE(row.contains("bytes_per_second")) << "nothing was counted";
}

TEST(Report, WritesATable) {
  const std::string table = to_table(small_report(), /*colour=*/false);
  EXPECT_THAT(table, HasSubstr("bench head: "));
  EXPECT_THAT(table, HasSubstr("  500 ms   20.0%    200 "));
  EXPECT_THAT(table, HasSubstr("  25.0%  "));
  EXPECT_THAT(table, HasSubstr("1.5e-03  1.5 x GEMMs\n\ncounted: all\n"));
  EXPECT_THAT(table, Not(HasSubstr("GB/s  of read"))) << "a column that no row fills";
  EXPECT_THAT(table, Not(HasSubstr("\x1b")));
  EXPECT_THAT(to_table(small_report(), /*colour=*/true), HasSubstr("\x1b[48;5;202m"));
}

TEST(Report, KnowsDtypes) {
  EXPECT_EQ(dtypes_named({"int8", "bfloat16"}), (std::vector<at::ScalarType>{at::kChar, at::kBFloat16}));
  EXPECT_EQ(dtype_name(at::kFloat), "float32");
  TrainBench bench;
  bench.dtypes = {"float32", "float33"};
  const auto [code, text] = tamis::testing::error_of([&] { check_options(bench); });
  EXPECT_EQ(code, ExitCode::kUsage);
  EXPECT_THAT(text, HasSubstr("unknown dtype \"float33\"; did you mean \"float32\"?"));
}

}  // namespace
}  // namespace tamis::bench
