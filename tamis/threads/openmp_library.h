#pragma once

namespace tamis::threads {

/// A function of the OpenMP library that LibTorch brought into the process; ends the process when there is none, which
/// no code compiled for OpenMP can meet.
void* openmp_function(const char* name);

/// Whether this program's team can serve all OpenMP code in the process: the OpenMP library is libgomp, every function
/// that its users import from it is one that openmp.cc replaces or one that works in any thread, and the user has not
/// set OpenMP up by a variable of the environment (OMP_* or GOMP_* other than OMP_NUM_THREADS). Found out once.
bool team_serves_openmp();

}  // namespace tamis::threads
