#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tamis/distributed/launch.h"

namespace tamis::distributed {

/// Why the processes did not meet: "not within 600 s; ...".
std::string not_within(std::chrono::milliseconds timeout);

/// Joins the processes that were started together at a store. It may hold keys of earlier starts, as the file of killed
/// processes or the store of torchrun's agents does, but no process of another start may be using it. Returns the part
/// of the store that belongs to this start. Each process asks the store for news every 20 to 250 ms until all have
/// come.
///
/// Throws ExitCode::kUsage in every process when one has another version or was started as one of another number of
/// processes, ExitCode::kLostProcess when they do not come within the time-out, and what the store throws.
c10::intrusive_ptr<c10d::Store> meet_at(c10::intrusive_ptr<c10d::Store> store, const Launch& launch,
                                        std::chrono::milliseconds timeout);

}  // namespace tamis::distributed
