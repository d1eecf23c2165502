// OpenMP's questions, which a build without OpenMP answers for its one thread.
#pragma once
#ifdef _OPENMP
#include <omp.h>
#else
inline int omp_get_max_threads() { return 1; }
inline int omp_get_num_threads() { return 1; }
inline int omp_get_thread_num() { return 0; }
inline bool omp_in_parallel() { return false; }
enum OmpProcBind { omp_proc_bind_false };
inline OmpProcBind omp_get_proc_bind() { return omp_proc_bind_false; }
inline void omp_set_num_threads(int) {}
#endif
