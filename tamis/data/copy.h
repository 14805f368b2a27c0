#pragma once

#include <vector>

#include "tamis/data/task.h"

namespace tamis::data {

/// Copy ("Sieve Attention", appendix D.1): the model repeats a sequence of random ids.
///
///   ids        x_1 .. x_m, 0, x_1 .. x_(m-1)       x in [1, vocab), m = floor(length / 2)
///   positions          m, m+1, ..                  the separator 0 and the copied ids
///   answers           x_1, x_2, .., x_m
///
/// Setting: vocab (default 32, small enough that ids repeat). The paper trains with a length of 64.
std::vector<Task> copy_tasks();

}  // namespace tamis::data
