# Cross-compiling for 64-bit Arm with Debian's g++-aarch64-linux-gnu (preset aarch64). scripts/aarch64.sh fills
# build/aarch64/sysroot with Debian's libraries and build/aarch64/wheels with LibTorch.

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
file(REAL_PATH ${CMAKE_CURRENT_LIST_DIR}/../build/aarch64/sysroot tamis_sysroot)
set(CMAKE_SYSROOT ${tamis_sysroot})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${tamis_sysroot})
