#pragma once

#include <vector>

#include "tamis/data/task.h"

namespace tamis::data {

/// Needle in a haystack as in "Scalable-Softmax Is Superior for Attention", section 3.3: one sentence among others
/// states a random seven-digit number for a random city, and the question at the end asks for it.
///
///   ... Here we go. The special magic Tokyo number is: 8106422. There and back again. ...
///   What is the special magic Tokyo number? The special magic Tokyo number is:
///
/// haystack  a text file given by the user, else kNoise
/// depth     position of the needle as a fraction of the haystack's bytes, rounded down to the end of a sentence
/// answer    the digits. The answer span begins after the needle's colon and ends with the needle: ` 8106422.`. The
///           needle score is the attention on this span while the first token of the answer is generated
/// score     1 when the first number in the generated text is the needle's, else 0
std::vector<Task> needle_tasks();

}  // namespace tamis::data
