#pragma once

#include <vector>

#include "tamis/data/task.h"

namespace tamis::data {

/// Multi-query repeated associative recall (Tan et al. 2025; "Sieve Attention", appendix D.1): key-value pairs in which
/// keys recur with new values, then queries for the latest value of a key.
///
///   ids        k_1 v_1 .. k_P v_P, 0, q_1 .. q_Q        P = floor((length - 1 - Q) / 2)
///   positions  of the queries                          answers  the value of the last pair with that key
///
/// Each key has two pairs, the keys of the remaining pairs are drawn uniformly, and all pairs are shuffled. A pair's
/// value always differs from the current value of its key. Queries are drawn uniformly and may repeat. Ids are as in
/// recall.h. The paper specifies neither the numbers of keys and queries nor the separator 0, without which the first
/// query could not be distinguished from the key of another pair.
///
/// Settings: keys (8), queries (15), vocab (256). The paper trains with a length of 64 and evaluates up to 1,024 times
/// that.
std::vector<Task> mqrar_tasks();

}  // namespace tamis::data
