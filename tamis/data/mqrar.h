#pragma once

#include <vector>

#include "tamis/data/task.h"

namespace tamis::data {

/// Multi-query repeated associative recall (Tan et al. 2025; "Sieve Attention", appendix D.1): pairs of key and value
/// in which keys come again and again with new values, then queries for the latest ones.
///
///   ids        k_1 v_1 .. k_P v_P, 0, q_1 .. q_Q        P = floor((length - 1 - Q) / 2)
///   positions  of the queries                          answers  the value of the last pair with that key
///
/// `keys` keys have at least two pairs each, the other pairs go to keys drawn uniformly, and all are shuffled; a value
/// is never the one that the key has already. Queries are drawn uniformly, so they may repeat. Ids are as recall.h
/// says. The paper gives neither the number of keys and queries nor the separator 0, without which the first query and
/// the key of another pair would look the same.
///
/// Settings: keys (8), queries (15), vocab (256). The paper trains with a length of 64 and tests up to 1024 times that.
std::vector<Task> mqrar_tasks();

}  // namespace tamis::data
