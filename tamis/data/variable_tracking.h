#pragma once

#include <vector>

#include "tamis/data/task.h"

namespace tamis::data {

/// Variable tracking of RULER, with the prompt and score of lm-evaluation-harness's `ruler_vt`. Among lines of noise, a
/// number is assigned to a variable, and further assignments copy it from variable to variable; the question asks for
/// all variables with that number. The prompt begins with a small solved example.
///
///   VAR QWRTE = 40213   ...   VAR PLMKO = VAR QWRTE   ...   VAR ZXCVB = VAR PLMKO   ...
///
/// length   the prompt has as many noise lines as fit
/// answers  the variables of the first chain; their spans are where the value is assigned to them
/// score    share of the answers that the generated text contains, ignoring case
///
/// Settings: chains (1), hops (4). The harness draws one example for all instances and renames its variables; here
/// every instance has its own example, with ten lines of noise, which is the harness's number for tokenizers with about
/// four bytes per token.
std::vector<Task> variable_tracking_tasks();

}  // namespace tamis::data
