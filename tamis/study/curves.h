#pragma once

#include <cstdint>
#include <string>

#include "tamis/study/functions.h"

namespace tamis::study {

/// Rows of the curves of a training, from its log.jsonl:
///
///   training_loss, gradient_norm        step, tokens   at most 200 points, each the mean of neighbouring records
///   validation_curve                    step, source
///   window_curve, acceptance_curve      step, head     the smallest, median and largest of all screening heads, at up
///                                                      to 200 steps; infinite windows have no row
///   loss_spikes                         losses that exceed the median of the 20 before by 0.5 nats
void add_curves(const std::string& log, int64_t batch_tokens, const AddRow& add);

}  // namespace tamis::study
