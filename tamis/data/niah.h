#pragma once

#include <vector>

#include "tamis/data/task.h"

namespace tamis::data {

/// The needle tasks of RULER, with the prompts and score of lm-evaluation-harness's `ruler` group:
///
///   Some special magic numbers are hidden within the following text. Make sure to memorize it. I will quiz you about
///   the numbers afterwards.
///   ... One of the special magic numbers for quick-lantern is: 4181730. ...
///   What are all the special magic numbers for quick-lantern, and calm-river mentioned in the provided text? The
///   special magic numbers for quick-lantern, and calm-river mentioned in the provided text are
///
/// (in the singular when the question asks for one value).
///
///   task               keys       values      hidden in      needles
///   niah_single_1      words      numbers     noise          1
///   niah_single_2      words      numbers     haystack       1
///   niah_single_3      words      UUIDs       haystack       1
///   niah_multikey_1    words      numbers     haystack       4 keys, 1 in the question
///   niah_multikey_2    words      numbers     other needles  1
///   niah_multikey_3    UUIDs      UUIDs       other needles  1
///   niah_multivalue    words      numbers     haystack       1 key with 4 numbers, all 4 are the answer
///   niah_multiquery    words      numbers     haystack       4 keys, all 4 in the question
///
/// haystack  a text file given by the user (RULER: Paul Graham's essays). Needles are inserted between sentences at 40
///           possible depths. Noise and other needles are lines
/// answers   key by key; the spans begin after a needle's colon and end with the needle, as in needle.h
/// score     share of the answers that the generated text contains, ignoring case
///
/// Other needles never contain a key of the question or an answer. Words come from words.h (the harness has its own
/// list). The length limits the prompt alone; the harness's length includes 128 tokens for the answer, but not the
/// sentence that the model completes.
std::vector<Task> niah_tasks();

}  // namespace tamis::data
