#pragma once

#include <vector>

#include "tamis/data/task.h"

namespace tamis::data {

/// Variable tracking of RULER, with the prompt and score of lm-evaluation-harness's `ruler_vt`: among lines of noise a
/// variable gets a number, and others get it from that one, hop by hop; all of them are asked for. A small example of
/// the same kind, with its answer, comes first.
///
///   VAR QWRTE = 40213   ...   VAR PLMKO = VAR QWRTE   ...   VAR ZXCVB = VAR PLMKO   ...
///
/// length   the most bytes of noise lines that fit
/// answers  the variables of the first chain; their spans are the places where they get the value
/// score    share of the answers that the model's text contains, whatever the case
///
/// Settings: chains (1), hops (4). The harness draws its example once for all instances and then renames its
/// variables; here every instance has its own, with ten lines of noise (what the harness comes to with tokenizers of
/// about four bytes a token).
std::vector<Task> variable_tracking_tasks();

}  // namespace tamis::data
