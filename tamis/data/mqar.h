#pragma once

#include <vector>

#include "tamis/data/task.h"

namespace tamis::data {

/// Multi-query associative recall ("Zoology", Arora et al. 2023): pairs of key and value, then each key once, among
/// filler, asking for its value.
///
///   ids        k_1 v_1 .. k_P v_P, then for slots s = 1 .. floor((length - 2 P) / 2): a key, or filler; filler
///   positions  of the keys asked for           answers  their values
///
/// Keys and values are distinct and drawn as recall.h says. A key's slot is drawn with weight s^(a - 1), a = 0.01, no
/// slot twice: most are asked for soon. The filler is keys that no pair binds. (Zoology's own filler is any id, so that
/// it may ask for a key without an answer, or give it another value.)
///
/// Settings: pairs (8), vocab (8192).
std::vector<Task> mqar_tasks();

}  // namespace tamis::data
