#pragma once

#include <cstdint>
#include <string_view>

namespace tamis {

/// Memory of this process now, in bytes.
int64_t resident_bytes();

/// Bytes that this process can still get: what the system calls available, less where its control groups (version 1 or
/// 2) or its limit on address space allow less.
int64_t available_memory_bytes();

/// `trim` gives back to the system what the process only keeps for later; require_memory calls it before it refuses.
void set_memory_trim(void (*trim)());

/// Calls what set_memory_trim was given, if anything.
void trim_memory();

/// Bytes from which on a buffer asks before it is made: to find what is available takes many microseconds.
inline constexpr int64_t kWorthAsking = int64_t{16} << 20;

/// Throws ExitCode::kRuntime when `what` needs more than is available: `a prompt of 5 tokens needs 3.0 TiB of memory,
/// but 8.0 GiB are available; <advice>`. The system would kill the process later, without a word.
void require_memory(double bytes, std::string_view what, std::string_view advice);

}  // namespace tamis
