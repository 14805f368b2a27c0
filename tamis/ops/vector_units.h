#pragma once

namespace tamis::ops {

/// Whether the processor multiplies and adds 512 bits at a time, so that AVX-512 computes twice what AVX2 does in the
/// same time: true on a Zen 5, false on a Zen 4, which executes every 512-bit instruction in two halves. False without
/// AVX-512.
///
/// No flag of the processor says so. The first call, of about a millisecond, runs as many multiply-adds of either
/// width, in registers, and takes the median ratio of their times over 101 pairs. The times are equal, or differ by a
/// factor of 2, or of 4/3 at least if another program keeps the same units of the core busy all the time. So the answer
/// is always the same.
///
/// On Intel's processors, which slow down for a moment when they begin 512-bit instructions, it varies: on an Emerald
/// Rapids the median ratio is 1 in most measurements and 1.5 in some. It is not used there (matmul_backend.cc).
bool has_512_bit_units();

/// The measurement itself, at every call.
bool measure_512_bit_units();

}  // namespace tamis::ops
