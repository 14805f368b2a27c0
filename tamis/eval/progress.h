#pragma once

#include <functional>

namespace tamis::eval {

/// Called now and then with the share of the work that is done, in tokens read.
using Progress = std::function<void(double done, double total)>;

}  // namespace tamis::eval
