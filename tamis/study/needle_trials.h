#pragma once

#include "tamis/eval/task_eval.h"
#include "tamis/study/functions.h"

namespace tamis::study {

/// Rows of the needle scores of single heads and of single instances ("Scalable-Softmax Is Superior for Attention",
/// figures 7 and 8):
///
///   needle_score_head   length, depth, layer, head, rank   the mean over the instances of a cell
///   needle_score_trial  length, rank, outcome              an instance's head with the largest score; over all depths
///
/// Rank 1 has the largest score of its cell or length. `outcome` is "right", "first character" or "wrong".
void add_needle_trials(const eval::TaskResult& result, const AddRow& add);

}  // namespace tamis::study
