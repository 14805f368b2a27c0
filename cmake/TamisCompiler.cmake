# Flags for all targets: warnings, assertions, sanitizers, ccache.

add_library(tamis_flags INTERFACE)
target_include_directories(tamis_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(tamis_flags INTERFACE -Wall -Wextra -Wno-unknown-pragmas
                                             -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(tamis_flags INTERFACE -Wno-restrict)  # false positives of GCC 12 in std::string (PR 105651)
  # Garbage collection scans the precompiled torch header, 0.5 GB, each time. Beginning at 2 GB saves a tenth of the
  # compile time and costs 0.2 to 0.3 GB per process.
  target_compile_options(tamis_flags INTERFACE --param=ggc-min-heapsize=2000000)
endif()
if(TAMIS_WERROR)
  target_compile_options(tamis_flags INTERFACE -Werror)
endif()
if(TAMIS_ASSERTIONS)
  target_compile_definitions(tamis_flags INTERFACE TAMIS_ASSERTIONS)
endif()
# Kernels are compiled for AVX2, for AVX-512 (AVX3) and, as the fallback, for the baseline. Each further instruction set
# would add a fifth to the compile time of the kernels.
set(tamis_disabled_targets "HWY_SSSE3|HWY_SSE4")
if(TAMIS_SANITIZE)
  # Debug information with line numbers only, and kernels for the fallback and the widest instruction set only: all sets
  # are compiled from the same source.
  target_compile_options(tamis_flags INTERFACE -g1 -fsanitize=${TAMIS_SANITIZE} -fno-omit-frame-pointer
                                               -fno-sanitize-recover=undefined)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(tamis_flags INTERFACE -Wno-maybe-uninitialized)  # false positives of GCC with sanitizers
  endif()
  string(APPEND tamis_disabled_targets "|HWY_AVX2")
  target_link_options(tamis_flags INTERFACE -fsanitize=${TAMIS_SANITIZE})
endif()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  # NEON, and SVE for one length of vectors: kernels keep vectors in arrays, for which the compiler has to know their size.
  # Highway chooses these kernels on processors with vectors of that length. Those of 128 bits do what NEON does.
  set(TAMIS_SVE_BITS 0 CACHE STRING "Kernels for SVE vectors of this length besides NEON: 256, 128 (SVE2) or 0, none")
  set_property(CACHE TAMIS_SVE_BITS PROPERTY STRINGS 0 128 256)
  if(NOT TAMIS_SVE_BITS MATCHES "^(256|128|0)$")
    message(FATAL_ERROR "TAMIS_SVE_BITS must be 256, 128 or 0, but is ${TAMIS_SVE_BITS}")
  endif()
  set(tamis_disabled_targets "HWY_SVE|HWY_SVE2")
  if(NOT TAMIS_SVE_BITS EQUAL 256)
    string(APPEND tamis_disabled_targets "|HWY_SVE_256")
  endif()
  if(NOT TAMIS_SVE_BITS EQUAL 128)
    string(APPEND tamis_disabled_targets "|HWY_SVE2_128")
  endif()
  if(TAMIS_SVE_BITS)
    target_compile_options(tamis_flags INTERFACE -msve-vector-bits=${TAMIS_SVE_BITS})
  endif()
  target_compile_definitions(tamis_flags INTERFACE TAMIS_SVE_BITS=${TAMIS_SVE_BITS})
  # One expression gives one result: no product is fused with a sum in one place and not in another.
  add_compile_options(-ffp-contract=off)
endif()
target_compile_definitions(tamis_flags INTERFACE "HWY_DISABLED_TARGETS=(${tamis_disabled_targets})")

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # Lets ccache skip the preprocessor; the precompiled torch header needs these sloppiness options.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1 CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${CCACHE_PROGRAM})
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()
