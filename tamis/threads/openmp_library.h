#pragma once

namespace tamis::threads {

/// A function of the OpenMP library that LibTorch loaded. Aborts when there is none; code compiled for OpenMP is linked
/// to such a library, so this cannot happen there.
void* openmp_function(const char* name);

/// True when the team can run all OpenMP code of the process: the only OpenMP library is libgomp; every function that
/// is imported from it is replaced by openmp.cc or works in any thread; and no environment variable OMP_* or GOMP_*
/// other than OMP_NUM_THREADS is set. Determined at the first call.
bool team_serves_openmp();

}  // namespace tamis::threads
