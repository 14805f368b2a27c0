#pragma once

#include <cstdint>
#include <string_view>

namespace tamis {

/// Resident memory of this process, in bytes.
int64_t resident_bytes();

/// The most resident memory that this process ever had, in bytes (VmHWM of Linux).
int64_t peak_resident_bytes();

/// Bytes left within the limit on address space (RLIMIT_AS); the largest int64_t without one.
int64_t available_address_space();

/// Bytes that this process can still allocate: the minimum of MemAvailable, the limits of its control groups (version
/// 1 or 2) and its limit on address space.
int64_t available_memory_bytes();

/// Registers a function that returns cached memory to the system; require_memory calls it before it refuses.
void set_memory_trim(void (*trim)());

/// Calls the function that set_memory_trim registered, if any.
void trim_memory();

/// Buffers above this many bytes are checked by require_memory first; the check takes many microseconds.
inline constexpr int64_t kWorthAsking = int64_t{16} << 20;

/// Throws ExitCode::kRuntime when `bytes` are not available: `<what> needs 3.0 TiB of memory, but 8.0 GiB are
/// available; <advice>`. Without the check the kernel would kill the process later, without a message.
void require_memory(double bytes, std::string_view what, std::string_view advice);

}  // namespace tamis
