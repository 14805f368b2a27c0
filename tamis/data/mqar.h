#pragma once

#include <vector>

#include "tamis/data/task.h"

namespace tamis::data {

/// Multi-query associative recall ("Zoology", Arora et al. 2023): key-value pairs, then each key once more, among
/// filler, as a query for its value.
///
///   ids        k_1 v_1 .. k_P v_P, then in each slot s = 1 .. floor((length - 2 P) / 2): a query key or filler, filler
///   positions  of the query keys               answers  their values
///
/// Keys and values are distinct and drawn as described in recall.h. The slots of the queries are drawn without
/// replacement with weights s^(a - 1), a = 0.01, so that most queries come early. The filler consists of keys that are
/// in no pair. (Zoology's own filler is any id, so that it may contain a query without an answer, or give a key another
/// value.)
///
/// Settings: pairs (8), vocab (8192).
std::vector<Task> mqar_tasks();

}  // namespace tamis::data
