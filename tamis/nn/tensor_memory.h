#pragma once

#include <cstddef>
#include <cstdint>

namespace tamis::nn {

/// From now on tensors of 64 KiB or more in this process's main memory come from one Arena (tamis/base/arena.h), which
/// keeps what they release, and malloc keeps what libraries release to it: a steady loop asks the kernel for nothing.
/// For programs, in main, before the first tensor; a library must leave its host's memory alone. Does nothing in
/// builds with a sanitizer, which watches the blocks of malloc, and where address space is limited (RLIMIT_AS).
void keep_tensor_memory();

/// Bytes that released tensors left behind for the next ones; require_memory gives them back before it refuses.
int64_t cached_tensor_bytes();

/// Times that the process touched a page that the kernel first had to provide. The difference over a steady step is 0.
int64_t page_faults();

}  // namespace tamis::nn
