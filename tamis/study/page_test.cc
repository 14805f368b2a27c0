#include "tamis/study/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tamis/base/testing.h"

namespace tamis::study {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

json page_claim(const std::string& verdict) {
  return {{"id", "c"},
          {"text", "A < B & \"C\""},
          {"paper", "40% | table 1"},
          {"statistic", "ratio"},
          {"metric", "score"},
          {"value", 1.25},
          {"interval_95", {1, 1.5}},
          {"seeds", 3},
          {"verdict", verdict},
          {"reason", ""},
          {"at_least", 1.1},
          {"at_most", json()}};
}

json page_study() {
  const json point = {{"name", "rope"},
                      {"columns", json::object()},
                      {"parameters", 100},
                      {"parameters_without_embedding", 80},
                      {"tokens", 2048},
                      {"matched_by", json()},
                      {"chosen", "train.lr 0.01 (edge)"},
                      {"status", "1 of 2"},
                      {"seconds", 2.0}};
  return {{"title", "A <study>"},
          {"paper", ""},
          {"question", "Why?"},
          {"command", "tamis study a.toml"},
          {"claims", {page_claim("holds")}},
          {"claim_changes", json::array()},
          {"figures", json::array()},
          {"tables", json::array()},
          {"drawn", json::array()},
          {"points", {point}},
          {"has_model", true},
          {"machine", {{"processor", "a processor"}, {"cores", 2}}},
          {"done", 1},
          {"jobs", 2},
          {"seconds", 2.0},
          {"version", "0.1"},
          {"commit", "abc"},
          {"time", "2026-01-01T00:00:00Z"},
          {"assumptions", json::array()},
          {"failed", json::array()},
          {"recipe", "[study]\ntitle = \"<b>\"\n"}};
}

json page_table(const json& changes) {
  json table = {{"title", "Scores"},   {"metric", "score"}, {"where", json::object()},
                {"rows", {"variant"}}, {"columns", ""},     {"best_over", ""},
                {"best", "highest"},   {"scale", 1.0},      {"digits", 2}};
  table.update(changes);
  return table;
}

json score_row(const std::string& variant, int64_t seed, double score, int64_t length = 32, int64_t factor = 1) {
  return {{"metric", "score"}, {"value", score},   {"variant", variant},
          {"seed", seed},      {"length", length}, {"rope_factor", factor}};
}

/// The Markdown of a study with one table.
std::string page_with(const json& table, const Rows& rows) {
  json study = page_study();
  study["tables"] = {page_table(table)};
  return to_markdown(study, rows, "figures");
}

TEST(StudyPage, HasClaimsWithMarginIntervalAndVerdict) {
  EXPECT_THAT(to_markdown(page_study(), {}, "figures"),
              HasSubstr("| A < B & \"C\" | 40% \\| table 1 | ratio at least 1.1 | 1.25 [1, 1.5] | holds |\n"));
}

TEST(StudyPage, SaysThatClaimsWereChanged) {
  json study = page_study();
  EXPECT_THAT(to_markdown(study, {}, "figures"), Not(HasSubstr("were changed")));
  study["claim_changes"] = {{{"time", "2026-02-03T04:05:06Z"}, {"results", 7}, {"what", "changed c, added d"}}};
  EXPECT_THAT(
      to_markdown(study, {}, "figures"),
      HasSubstr("The claims were changed on 2026-02-03T04:05:06Z, when 7 results existed: changed c, added d."));
}

TEST(StudyPage, NamesEveryModelAndTheMachine) {
  const std::string text = to_markdown(page_study(), {}, "figures");
  EXPECT_THAT(text, HasSubstr("| rope | 100 | 80 | 2.05k | train.lr 0.01 (edge) | 1 of 2 | "));
  EXPECT_THAT(text, HasSubstr("1 of 2 jobs are done"));
  EXPECT_THAT(text, HasSubstr("a processor, 2 cores, Tamis 0.1 (abc), 2026-01-01T00:00:00Z."));
}

TEST(StudyPage, HasTheCommandThatTakesTheStatedTime) {
  json study = page_study();
  EXPECT_THAT(to_markdown(study, {}, "figures"), HasSubstr("\nCommand: tamis study a.toml\n"));
  study["tier"] = "cpu";
  study["threads"] = {1};
  study["prepare"] = "make text";
  EXPECT_THAT(to_markdown(study, {}, "figures"),
              HasSubstr("\nCommand: tamis study a.toml --jobs 2, after make text\n"));
}

TEST(StudyPage, SaysWhatItCostWhateverElseRan) {
  json study = page_study();
  EXPECT_THAT(to_markdown(study, {}, "figures"), HasSubstr("1 of 2 jobs are done, 2.0s in all. "));
  study["processor_seconds"] = json();
  study["threads"] = {1};
  EXPECT_THAT(to_markdown(study, {}, "figures"), HasSubstr("2.0s in all (1 thread each). "));
  study["processor_seconds"] = 1.5;
  study["threads"] = {1, 2};
  EXPECT_THAT(to_markdown(study, {}, "figures"),
              HasSubstr("2.0s in all (1.5s of processor time, 1 or 2 threads each). "));
}

TEST(StudyPage, ExplainsAValueAtTheEdge) {
  const std::string note =
      "(edge): the smallest or the largest of the values that were tried; a better one may lie beyond.";
  EXPECT_THAT(to_markdown(page_study(), {}, "figures"), HasSubstr(" |\n\n" + note + "\n\n1 of 2 jobs are done"));
  EXPECT_THAT(to_html(page_study(), {}, "nowhere"), HasSubstr("</table></div>\n<p>" + note + "</p>\n"));
  json study = page_study();
  study["points"][0]["chosen"] = "train.lr 0.01";
  EXPECT_THAT(to_markdown(study, {}, "figures"), Not(HasSubstr("edge")));
}

TEST(StudyPage, ListsDivergedRuns) {
  json study = page_study();
  study["failed"] = {"rope/seed-1: the loss is nan"};
  EXPECT_THAT(to_markdown(study, {}, "figures"), HasSubstr("## Diverged\n\n- rope/seed-1: the loss is nan\n"));
}

TEST(StudyPage, OfHtmlEscapesTextAndMarksVerdicts) {
  const std::string html = to_html(page_study(), {}, "nowhere");
  EXPECT_THAT(html, HasSubstr("<title>A &lt;study&gt;</title>"));
  EXPECT_THAT(html, HasSubstr("<td>A &lt; B &amp; &quot;C&quot;</td>"));
  EXPECT_THAT(html, HasSubstr("<td class=\"holds\">holds</td>"));
  EXPECT_THAT(html, HasSubstr("title = &quot;&lt;b&gt;&quot;"));
  EXPECT_THAT(html, Not(HasSubstr("<script")));
}

TEST(StudyPage, HasOnlyFiguresThatWereDrawn) {
  const tamis::testing::TemporaryDirectory directory;
  directory.write("a.svg", "<?xml version=\"1.0\"?>\n<svg><path d=\"\"/></svg>");
  json study = page_study();
  study["figures"] = {{{"id", "a"}, {"title", ""}, {"metric", "score"}, {"x", "rope_factor"}},
                      {{"id", "b"}, {"title", "B"}, {"metric", "score"}}};
  EXPECT_THAT(to_markdown(study, {}, "figures"), Not(HasSubstr("## Figures")));
  study["drawn"] = {"a"};
  EXPECT_THAT(to_markdown(study, {}, "figures"), HasSubstr("## Figures\n\n![Score by rope factor](figures/a.svg)\n\n"));
  const std::string html = to_html(study, {}, directory.path());
  EXPECT_THAT(html,
              HasSubstr("<figure role=\"img\" aria-label=\"Score by rope factor\"><svg><path d=\"\"/></svg></figure>"));
  EXPECT_THAT(html, Not(HasSubstr("<?xml")));
}

TEST(StudyPage, CellsAreMeanAndDeviationOverSeeds) {
  const Rows rows = {score_row("a", 1, 0.1), score_row("a", 1, 0.3), score_row("a", 2, 0.4), score_row("b", 1, 0.5)};
  const std::string text = page_with({{"scale", 100}, {"digits", 1}}, rows);
  EXPECT_THAT(text, HasSubstr("| variant | score |\n"));
  EXPECT_THAT(text, HasSubstr("| a | 30.0 ± 14.1 |\n"));  // of 20 and 40
  EXPECT_THAT(text, HasSubstr("| b | 50.0 |\n"));
}

TEST(StudyPage, ColumnsOfATableAscend) {
  const Rows rows = {score_row("a", 1, 0.1, 128), score_row("a", 1, 0.2, 32), score_row("b", 1, 0.3, 32)};
  const std::string text = page_with({{"columns", "length"}}, rows);
  EXPECT_THAT(text, HasSubstr("| variant | 32 | 128 |\n"));
  EXPECT_THAT(text, HasSubstr("| a | 0.20 | 0.10 |\n"));
  EXPECT_THAT(text, HasSubstr("| b | 0.30 | - |\n"));
}

TEST(StudyPage, ATableMayShowTheBestOfAColumn) {
  const Rows rows = {score_row("a", 1, 0.1, 32, 1), score_row("a", 1, 0.2, 32, 4), score_row("b", 1, 0.4, 32, 1)};
  EXPECT_THAT(page_with({{"best_over", "rope_factor"}}, rows), HasSubstr("| a | 0.20 (4) |\n| b | 0.40 (1) |\n"));
  EXPECT_THAT(page_with({{"best_over", "rope_factor"}, {"best", "lowest"}}, rows), HasSubstr("| a | 0.10 (1) |\n"));
}

/// Three seeds around a score.
Rows seeds_around(const std::string& variant, double score, double spread) {
  return {score_row(variant, 1, score - spread), score_row(variant, 2, score), score_row(variant, 3, score + spread)};
}

Rows both(Rows rows, const Rows& more) {
  rows.insert(rows.end(), more.begin(), more.end());
  return rows;
}

TEST(StudyPage, PrintsTheBestVariantBoldIfItDiffersBeyondUncertainty) {
  const Rows apart = both(seeds_around("a", 0.8, 0.02), seeds_around("b", 0.6, 0.02));
  EXPECT_THAT(page_with(json::object(), apart), HasSubstr("| a | **0.80 ± 0.02** |\n| b | 0.60 ± 0.02 |\n"));
  EXPECT_THAT(page_with(json::object(), apart), HasSubstr("in bold the best variant"));
  EXPECT_THAT(page_with(json::object(), both(seeds_around("a", 0.8, 0.15), seeds_around("b", 0.6, 0.05))),
              Not(HasSubstr("**")));
  EXPECT_THAT(page_with(json::object(), {score_row("a", 1, 0.9), score_row("b", 1, 0.1)}), Not(HasSubstr("**")));
  EXPECT_THAT(page_with(json::object(), both(seeds_around("a", 0.8, 0), seeds_around("b", 0.8, 0))),
              Not(HasSubstr("**")));
}

TEST(StudyPage, TheLowestLossIsTheBest) {
  Rows rows = both(seeds_around("a", 0.8, 0.02), seeds_around("b", 0.6, 0.02));
  for (json& row : rows) row["metric"] = "validation_loss";
  EXPECT_THAT(page_with({{"metric", "validation_loss"}}, rows), HasSubstr("| b | **0.60 ± 0.02** |"));
  for (json& row : rows) row["metric"] = "window";  // neither is better
  EXPECT_THAT(page_with({{"metric", "window"}}, rows), Not(HasSubstr("**")));
}

TEST(StudyPage, OnlyVariantsAreComparedForBoldType) {
  Rows rows = both(seeds_around("a", 0.8, 0.02), seeds_around("b", 0.6, 0.02));
  for (const json& row : seeds_around("a", 0.99, 0)) {
    rows.push_back(row);
    rows.back()["length"] = 64;
  }
  const std::string text = page_with({{"rows", {"length", "variant"}}}, rows);
  EXPECT_THAT(text, HasSubstr("| 32 | a | **0.80 ± 0.02** |"));
  EXPECT_THAT(text, HasSubstr("| 64 | a | 0.99 ± 0.00 |"));  // alone at this length
}

TEST(StudyPage, MarksChanceInATable) {
  const Rows rows = {score_row("a", 1, 0.1, 32), score_row("a", 1, 0.2, 128)};
  EXPECT_THAT(page_with({{"chance", 0.031}, {"scale", 100}, {"digits", 1}}, rows), HasSubstr("| chance | 3.1 |\n"));
  const std::string text = page_with({{"columns", "length"}, {"chance", {{"32", 0.5}}}}, rows);
  EXPECT_THAT(text, HasSubstr("| chance | 0.50 | - |\n"));
  EXPECT_THAT(page_with(json::object(), rows), Not(HasSubstr("chance")));
}

TEST(StudyPage, LeavesOutTablesWithoutRowsAndMarksMissingValues) {
  EXPECT_THAT(page_with(json::object(), {}), Not(HasSubstr("### Scores")));
  json row = score_row("a", 1, 0);
  row["value"] = json();
  EXPECT_THAT(page_with(json::object(), {row}), HasSubstr("| a | - |\n"));
  EXPECT_THAT(page_with({{"best_over", "rope_factor"}}, {row}), HasSubstr("| a | - |\n"));
}

TEST(StudyPage, NamesTheBestValueOfRowsThatHaveOne) {
  json plain = score_row("a", 1, 0.2), rope = score_row("rope", 1, 0.5);
  plain.erase("rope_factor");
  rope["rope_factor"] = 4;
  const std::string text = page_with({{"best_over", "rope_factor"}, {"digits", 1}}, {plain, rope});
  EXPECT_THAT(text, HasSubstr("| a | 0.2 |\n"));
  EXPECT_THAT(text, HasSubstr("| rope | 0.5 (4) |\n"));
}

}  // namespace
}  // namespace tamis::study
