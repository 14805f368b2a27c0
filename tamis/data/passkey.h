#pragma once

#include <vector>

#include "tamis/data/task.h"

namespace tamis::data {

/// Passkey retrieval (Mohtashami and Jaggi, "Landmark Attention", 2023): one line between lines of filler states a
/// five-digit number twice, and the question at the end asks for it.
///
///   There is an important info hidden inside a lot of irrelevant text. ...
///   The grass is green. The sky is blue. ...
///   The pass key is 71432. Remember it. 71432 is the pass key.
///   There and back again. The grass is ...
///   What is the pass key? The pass key is
///
/// depth   position of the line as a fraction of the filler's bytes, rounded down to the end of a sentence
/// answer  the digits; the answer span is their first occurrence
/// score   1 when the first number in the generated text is the key, else 0
std::vector<Task> passkey_tasks();

}  // namespace tamis::data
