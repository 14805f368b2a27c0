#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tamis/distributed/launch.h"

namespace tamis::distributed {

/// Why the processes did not meet: "not within 600 s; ...".
std::string not_within(std::chrono::milliseconds timeout);

/// Joins the processes that were started together at a store that may hold what earlier starts left there, as a file of
/// killed processes or the store of torchrun's agents does. Returns the part of the store that belongs to this start.
/// Each process writes and reads a few keys; process 0 reads one of every other.
///
/// Throws ExitCode::kUsage in every process when one has another version, ExitCode::kLostProcess when they do not come
/// within the time-out, and what the store throws.
c10::intrusive_ptr<c10d::Store> meet_at(c10::intrusive_ptr<c10d::Store> store, const Launch& launch,
                                        std::chrono::milliseconds timeout);

}  // namespace tamis::distributed
