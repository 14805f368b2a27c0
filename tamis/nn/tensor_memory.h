#pragma once

#include <cstddef>
#include <cstdint>

namespace tamis::nn {

/// From now on tensors of 64 KiB or more in this process's main memory come from one Arena (tamis/base/arena.h), which
/// keeps released memory for reuse, and malloc keeps what libraries release: a steady loop has no page faults.
/// require_memory returns what is kept to the system before it fails.
/// For programs, in main, before the first tensor; a library must leave its host's memory alone. Does nothing in
/// builds with a sanitizer, which watches the blocks of malloc. Where address space is limited (RLIMIT_AS), all threads
/// share malloc's main heap instead.
void keep_tensor_memory();

/// Page faults of the process so far. A steady step adds none.
int64_t page_faults();

}  // namespace tamis::nn
