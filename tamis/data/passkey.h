#pragma once

#include <vector>

#include "tamis/data/task.h"

namespace tamis::data {

/// Passkey retrieval (Mohtashami and Jaggi, "Landmark Attention", 2023): a number of five digits is told once, twice
/// over, in one line between lines of filler, and asked for at the end.
///
///   There is an important info hidden inside a lot of irrelevant text. ...
///   The grass is green. The sky is blue. ...
///   The pass key is 71432. Remember it. 71432 is the pass key.
///   There and back again. The grass is ...
///   What is the pass key? The pass key is
///
/// depth   of the line in the filler's bytes, at the end of a sentence
/// answer  the digits; the answer's span is their first mention
/// score   1 when the first number that the model says is the key
std::vector<Task> passkey_tasks();

}  // namespace tamis::data
