#pragma once

#include <functional>

namespace tamis::eval {

/// Called repeatedly with the number of tokens read so far and in total.
using Progress = std::function<void(double done, double total)>;

}  // namespace tamis::eval
