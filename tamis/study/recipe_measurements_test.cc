#include <gtest/gtest.h>

#include <string>

#include "tamis/study/testing.h"

namespace tamis::study {
namespace {

using testing::expect_study_refusals;
using testing::kFunction;
using testing::kTwoVariants;
using testing::read;
using testing::replaced;

TEST(StudyRecipe, RefusesBadEvaluations) {
  const std::string evaluation = kTwoVariants + "\n[[evaluations]]\n";
  expect_study_refusals({
      {"evaluations = [1]\n" + kTwoVariants, "small.toml:1: evaluations.0: expected a table"},
      {kFunction + "[[evaluations]]\ntask = \"copy\"\n", "small.toml:8: evaluations.1: kind task needs a \\[model\\]"},
      {evaluation + "kind = \"tsk\"\n", "small.toml:34: unknown .*\"tsk\"; did you mean \"task\""},
      {evaluation + "task = \"copi\"\nmultiples = [1]\n", "small.toml:34: unknown .*\"copi\"; did you mean \"copy\""},
      {evaluation + "multiples = [1]\n", "small.toml:33: .*evaluations.0"},
      {evaluation + "task = \"copy\"\n", "small.toml:33: evaluations.0: expected lengths or multiples"},
      {evaluation + "task = \"copy\"\nlengths = [0]\n", "small.toml:35: evaluations.0.lengths"},
      {evaluation + "task = \"passkey\"\nlengths = [8]\n", "passkey.*8.*too short.*evaluations.0"},
      {evaluation + "task = \"copy\"\nlengths = [8]\nmodel = {rope_fctor = 4}\n",
       "\"rope_fctor\"; did you mean \"rope_factor\""},
      {evaluation + "task = \"copy\"\nlengths = [8]\nexpand_windows = 3\n",
       "expand_windows must be true, false or a list"},
      {evaluation + "task = \"copy\"\nlengths = [8]\nexpand_windows = [true, true]\n",
       "expand_windows must be true, false or a list"},
      {evaluation + "task = \"copy\"\nlengths = [8]\nsettings = {vocab = \"x\"}\n",
       "evaluations.0.settings.vocab must be an integer"},
      {evaluation + "task = \"copy\"\nlengths = [8]\ncheckpoint_length = 8\n",
       "evaluations.0.checkpoint_length chooses among all checkpoints of a run; rope needs \\[train\\] keep = 0"},
      {replaced(evaluation, "warmup_steps = 10", "save_every = 20") +
           "task = \"copy\"\nlengths = [8]\ncheckpoint_length = 8\n",
       "rope needs \\[train\\] keep = 0 and save_every below its 80 steps"},
      {replaced(evaluation, "warmup_steps = 10", "save_every = 20\nkeep = 0") +
           "task = \"copy\"\nlengths = [8]\ncheckpoint_length = 1\n",
       "copy: a length of 1 tokens is too short"},
      {evaluation + "task = \"copy\"\nlengths = [8]\nskip_end_of_text = true\n", "copy: asks for single ids"},
      {evaluation + "kind = \"recall\"\ntask = \"copy\"\nlengths = [8]\n", "unknown .*\"copy\". Known: mqar, mqrar"},
      {evaluation + "kind = \"recall\"\ntask = \"mqar\"\nlengths = [64]\ndepths = [0.5]\n",
       "small.toml:37: unknown key of .*\"depths\""},
      {evaluation + "kind = \"recall\"\ntask = \"mqar\"\nlengths = [64]\ncell_tokens = 64\n",
       "unknown key of .*\"cell_tokens\""},
      {evaluation + "kind = \"recall\"\ntask = \"mqar\"\nlengths = [64]\ncheckpoint_length = 64\n",
       "unknown key of .*\"checkpoint_length\""},
      {evaluation + "kind = \"costs\"\n", "evaluations.0.lengths: expected at least one"},
      {evaluation + "kind = \"loss\"\nlengths = [8]\n", "evaluations.0.file: expected a text file"},
      {evaluation + "kind = \"loss\"\nfile = \"a\"\nfiles = [\"b\"]\nlengths = [8]\n", "file or files, not both"},
      {evaluation + "kind = \"loss\"\nfile = \"a\"\nlengths = [8]\nsmooth = 0.1\n", "smooth needs points"},
      {evaluation + "kind = \"loss\"\nfile = \"a\"\nlengths = [8]\npoints = 1001\n", "evaluations.0.points"},
      {evaluation + "kind = \"heads\"\nlengths = [8]\n", "unknown key of .* \"lengths\""},
      {evaluation + "task = \"copy\"\nlengths = [8]\nwhere = {variant = \"rop\"}\n",
       "small.toml:36: unknown variant \"rop\"; did you mean \"rope\""},
      {evaluation + "task = \"copy\"\nlengths = [8]\nwhere = {task = \"copy\"}\n",
       "small.toml:36: unknown column of the points \"task\". Known: position, variant"},
      {evaluation + "kind = \"relevance\"\nlengths = [64]\n",
       "64 tokens are more than train.length = 32, the length of a validation example \\(rope\\)"},
      {evaluation + "kind = \"relevance\"\nlengths = [32]\nheads = 500\n",
       "heads must be a whole number from 1 to 64, but is 500"},
      {evaluation + "kind = \"relevance\"\nlengths = [1000]\n", "4 heads of these lengths are 2002000 pairs of tokens"},
      {replaced(kFunction, "tanh_norm", "tanhnorm"), "small.toml:4: unknown function \"tanhnorm\""},
  });
}

TEST(StudyRecipe, RefusesBadClaims) {
  const std::string claim = kFunction + "[[claims]]\ntext = \"t\"\n";
  expect_study_refusals({
      {kFunction + "[[claims]]\nmetric = \"tanh_norm\"\nat_most = 1\n",
       "small.toml:8: claims.0.text: expected the statement"},
      {claim + "metric = \"tanh_norm\"\n", "small.toml:8: claims.0: expected at_least or at_most, the margin"},
      {claim + "metric = \"tanh_norm\"\nat_least = 2\nat_most = 1\n", "claims.0: at_least is above at_most"},
      {claim + "metric = \"tanhnorm\"\nat_most = 1\n",
       "small.toml:10: unknown metric \"tanhnorm\"; did you mean \"tanh_norm\""},
      {claim + "at_most = 1\n", "unknown metric \"\""},
      {claim + "metric = \"tanh_norm\"\nat_most = \"1\"\n", "small.toml:11: claims.0.at_most must be a number"},
      {claim + "metric = \"tanh_norm\"\nat_mst = 1\n",
       "small.toml:11: unknown key of .*\"at_mst\"; did you mean \"at_most\""},
      {claim + "metric = \"tanh_norm\"\nat_most = 1\nof = 3\n", "small.toml:12: claims.0.of must be a table"},
      {claim + "metric = \"tanh_norm\"\nat_most = 1\nof = {variant = [\"al\"]}\n",
       "small.toml:12: unknown variant \"al\"; did you mean \"all\""},
      {claim + "metric = \"tanh_norm\"\nat_most = 1\nof = {nrm = 1}\n",
       "small.toml:12: unknown column \"nrm\"; did you mean \"norm\""},
      {claim + "metric = \"tanh_norm\"\nat_most = 1\nbest_over = \"nrm\"\n", "small.toml:12: unknown column \"nrm\""},
      {claim + "metric = \"tanh_norm\"\nat_most = 1\nstatistic = \"slope\"\nx = \"nrm\"\n",
       "small.toml:13: unknown column \"nrm\""},
      {claim + "metric = \"tanh_norm\"\nat_most = 1\nstatistic = \"rato\"\n",
       "small.toml:12: .*\"rato\"; did you mean \"ratio\""},
      {claim + "metric = \"tanh_norm\"\nat_most = 1\nstatistic = \"ratio\"\n", "the statistic ratio needs `than`"},
      {claim + "metric = \"tanh_norm\"\nat_most = 1\nthan = {norm = 1}\n", "the statistic value has no `than`"},
      {claim + "metric = \"tanh_norm\"\nat_most = 1\nstatistic = \"slope\"\n", "the statistic slope needs `x`"},
      {claim + "metric = \"tanh_norm\"\nat_most = 1\nx = \"norm\"\n", "the statistic value has no `x`"},
      {claim + "metric = \"tanh_norm\"\nat_most = 1\nwithin = 0.3\n", "the statistic value has no `within`"},
      {claim + "metric = \"tanh_norm\"\nat_most = 1\nstatistic = \"upper_x\"\nx = \"norm\"\n",
       "the statistic upper_x needs `within`"},
      {claim + "metric = \"tanh_norm\"\nat_most = 1\nstatistic = \"upper_x\"\nx = \"norm\"\nwithin = 0.3\n",
       "upper_x needs as x one of"},
      {claim + "metric = \"tanh_norm\"\nat_most = 1\npaired = true\n",
       "small.toml:12: claims.0.paired: pairs are those of a difference, but the statistic is value"},
      {claim + "metric = \"tanh_norm\"\nat_most = 1\nabove = 0.5\nseeds_above = 0.5\n",
       "claims.0: seeds_above counts seeds; it cannot be used with above"},
      {claim + "metric = \"tanh_norm\"\nat_most = 1\npaired = 1\n", "claims.0.paired must be true or false"},
      {claim + "metric = \"tanh_norm\"\nat_most = 1\nneeds = [\"a\"]\n", "claims.0.needs: there is no claim before"},
      {claim + "metric = \"tanh_norm\"\nat_most = 1\n[[claims]]\ntext = \"u\"\nmetric = \"tanh_norm\"\nat_most = "
               "1\nneeds = [\"claim-2\"]\n",
       "unknown claim before this one \"claim-2\"; did you mean \"claim-1\""},
      {kTwoVariants + "[[claims]]\ntext = \"t\"\nmetric = \"validation_loss\"\nat_most = 1\nstatistic = "
                      "\"difference\"\npaired = true\nof = {variant = \"rope\"}\nthan = {variant = \"window\", seed "
                      "= 2}\n",
       "claims.0.paired: `of` has the seeds \\[1,2\\], but `than` has \\[2\\]"},
      {claim + "id = \"a\"\nmetric = \"tanh_norm\"\nat_most = 1\n[[claims]]\ntext = \"t\"\nid = \"a\"\nmetric = "
               "\"tanh_norm\"\nat_most = 1\n",
       "small.toml:13: claims.1.id: \"a\" is used twice|small.toml:15: claims.1.id: \"a\" is used twice"},
  });
}

TEST(StudyRecipe, ClaimsSelectValuesThatRowsHave) {
  const std::string axis =
      "\n[[axes]]\nkey = \"train.seed\"\nname = \"order\"\nvalues = [1, 2]\n[[claims]]\ntext = "
      "\"t\"\nmetric = \"validation_loss\"\nat_most = 1\n";
  expect_study_refusals({
      {kTwoVariants + axis + "of = {order = 3}\n", "small.toml:.*: unknown order \"3\""},
      {kTwoVariants + axis + "of = {order = \"1\"}\n", "claims.0.of.order is 1 in this study, not \"1\""},
  });
  for (const char* of :
       {"order = 1.0", "order = [1, 2]", "lr = 0.01", "seed = 2", "position = \"rope\"", "step = 20"}) {
    EXPECT_NO_THROW(read(kTwoVariants + axis + "of = {" + of + "}\n")) << of;
  }
}

TEST(StudyRecipe, AMeanOfTwoCheckpointsIsRefused) {
  const std::string study = replaced(kTwoVariants, "warmup_steps = 10", "save_every = 20\nkeep = 0") +
                            "\n[[evaluations]]\ntask = \"copy\"\nlengths = [8]\ncheckpoint_length = 8\nwhere = "
                            "{variant = \"rope\"}\n[[evaluations]]\ntask = \"passkey\"\nlengths = [256]\n";
  const std::string claim = study + "[[claims]]\ntext = \"t\"\nat_most = 1\nmetric = \"score\"\n";
  const std::string figure = study + "[[figures]]\nx = \"length\"\nmetric = \"score\"\n";
  const std::string table = study + "[[tables]]\nmetric = \"score\"\n";
  const std::string expected = ": score is measured of two checkpoints; select one, such as checkpoint = \"chosen\"";
  const std::string chosen = "{checkpoint = \"chosen\"}";
  expect_study_refusals({
      {claim, "claims.0" + expected},
      {claim + "of = {variant = \"rope\", task = \"copy\"}\n", "claims.0" + expected},
      {claim + "statistic = \"difference\"\nof = " + chosen + "\nthan = {variant = \"rope\"}\n", "claims.0" + expected},
      {figure, "figures.0" + expected},
      {replaced(figure, "\"score\"", "\"exact_match\""), "figures.0: exact_match is measured of two"},
      {table, "tables.0" + expected},
  });
  for (const std::string& good :
       {claim + "of = " + chosen, claim + "of = {variant = \"window\"}", claim + "of = {task = \"passkey\"}",
        claim + "best_over = \"checkpoint\"", figure + "where = " + chosen,
        figure + "series = [\"variant\", \"checkpoint\"]", figure + "panels = \"checkpoint\"",
        table + "where = " + chosen, table + "rows = [\"variant\", \"checkpoint\"]", table + "columns = \"checkpoint\"",
        replaced(table, "\"score\"", "\"chosen_step\"")}) {
    EXPECT_NO_THROW(read(good + "\n")) << good;
  }
}

TEST(StudyRecipe, RefusesBadFiguresAndTables) {
  const std::string figure = kFunction + "[[figures]]\nmetric = \"tanh_norm\"\n", table = kFunction + "[[tables]]\n";
  expect_study_refusals({
      {"figures = [3]\n" + kFunction, "small.toml:1: figures.0: \\[\\[figures\\]\\] must be a table"},
      {figure, "small.toml:8: figures.0: expected x"},
      {figure + "x = 3\n", "figures.0: x must be a string, but is 3"},
      {figure + "x = \"norm\"\nkind = \"line\"\n", "unknown kind \"line\"; did you mean \"lines\""},
      {figure + "x = \"norm\"\nkind = \"heatmap\"\n", "a heatmap needs y"},
      {figure + "x = \"norm\"\nseries = [1]\n", "series must be a array|series must be an array"},
      {figure + "x = \"norm\"\nwhere = {variant = \"a\"}\n", "small.toml:11: unknown variant \"a\""},
      {figure + "x = \"nrm\"\n", "small.toml:10: unknown column \"nrm\"; did you mean \"norm\""},
      {figure + "x = \"norm\"\nseries = [\"tanh_norm\"]\n", "unknown column \"tanh_norm\""},
      {figure + "x = \"norm\"\nsmooth = 0\n", "smooth must be at least 1, but is 0"},
      {figure + "x = \"norm\"\nid = \"../a\"\n", "figures.0.id must be letters"},
      {figure + "x = \"norm\"\nid = \"a\"\n[[figures]]\nmetric = \"tanh_norm\"\nx = \"norm\"\nid = \"a\"\n",
       "small.toml:15: figures.1.id: \"a\" is used twice"},
      {figure + "x = \"norm\"\nxscale = \"log\"\n",
       "unknown key of \\[\\[figures\\]\\] \"xscale\"; did you mean \"x_scale\""},
      {figure + "x = \"norm\"\nchance = \"half\"\n", "chance must be a number"},
      {figure + "x = \"norm\"\nchance = {a = 0.5}\n", "with panels a table with a number for each value"},
      {table + "metric = \"tanh_norm\"\ncolumns = \"norm\"\nchance = {a = \"half\"}\n", "chance must be a number"},
      {figure + "x = \"norm\"\nmarginals = true\n", "marginals are of a scatter, but kind is lines|\"lines\""},
      {figure + "x = \"norm\"\nkind = \"scatter\"\nmarginals = 1\n", "marginals must be true or false, but is 1"},
      {figure + "x = \"norm\"\nkind = \"histogram\"\n", "a histogram has no x but its metric"},
      {figure + "kind = \"histogram\"\nchance = 0.5\n", "small.toml:8: figures.0: a histogram shows no chance"},
      {figure + "x = \"norm\"\ny = \"variant\"\npanels = \"variant\"\nkind = \"heatmap\"\nchance = {all = 0.5}\n",
       "small.toml:8: figures.0: chance of a heatmap must be a number"},
      {table + "metric = \"tanh_norm\"\nrows = []\nchance = 0.5\n",
       "small.toml:8: tables.0: rows is empty; expected at least one column"},
      {kFunction + "[[figures]]\nx = \"norm\"\n", "figures.0: expected metric"},
      {kFunction + "[[figures]]\nmetric = \"tanhnorm\"\nx = \"norm\"\n", "unknown metric \"tanhnorm\""},
      {table + "metric = \"tanhnorm\"\n", "small.toml:9: unknown metric \"tanhnorm\""},
      {table + "metric = \"tanh_norm\"\ndigits = -1\n",
       "small.toml:8: tables.0: digits must be an integer in 0..17, but is -1"},
      {table + "metric = \"tanh_norm\"\ndigits = 1.5\n", "digits must be an integer"},
      {table + "metric = \"tanh_norm\"\nscale = \"x\"\n", "scale must be a number"},
  });
}

}  // namespace
}  // namespace tamis::study
