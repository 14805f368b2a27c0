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
/// (in the singular where one number is asked for).
///
///   task               keys       values      hidden in      needles
///   niah_single_1      words      numbers     noise          1
///   niah_single_2      words      numbers     haystack       1
///   niah_single_3      words      UUIDs       haystack       1
///   niah_multikey_1    words      numbers     haystack       4 keys, 1 asked for
///   niah_multikey_2    words      numbers     other needles  1
///   niah_multikey_3    UUIDs      UUIDs       other needles  1
///   niah_multivalue    words      numbers     haystack       1 key with 4 numbers, all asked for
///   niah_multiquery    words      numbers     haystack       4 keys, all asked for
///
/// haystack  a text of the user's (RULER: Paul Graham's essays); needles stand between sentences at 40 possible depths.
///           Noise and other needles are lines
/// answers   key by key; the spans reach from behind a needle's colon to its end, as those of needle.h
/// score     share of the answers that the model's text contains, whatever the case
///
/// Other needles never have a key that is asked for, nor an answer. Words are those of words.h (the harness: a list of
/// its own). The length counts the prompt; the harness's also holds 128 tokens for the answer, and not the sentence
/// that the model is to finish.
std::vector<Task> niah_tasks();

}  // namespace tamis::data
