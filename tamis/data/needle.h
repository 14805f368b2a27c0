#pragma once

#include <vector>

#include "tamis/data/task.h"

namespace tamis::data {

/// Needle in a haystack, in the form of "Scalable-Softmax Is Superior for Attention", section 3.3: a sentence among
/// others gives a random city a random number of seven digits, which is asked for at the end.
///
///   ... Here we go. The special magic Tokyo number is: 8106422. There and back again. ...
///   What is the special magic Tokyo number? The special magic Tokyo number is:
///
/// haystack  a text of the user's, else the noise
/// depth     of the needle in the haystack's bytes, at the end of a sentence
/// answer    the digits; the answer's span reaches from behind the needle's colon to the needle's end, ` 8106422.`: the
///           needle score is the attention on it while the first token of the answer is made
/// score     1 when the first number that the model says is the needle's
std::vector<Task> needle_tasks();

}  // namespace tamis::data
