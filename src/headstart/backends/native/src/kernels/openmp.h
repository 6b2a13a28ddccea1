// What is called of OpenMP's runtime. Not its own header: Apple's compiler knows the directives, but has no header.
#pragma once

extern "C" {
int omp_get_num_threads() noexcept;
int omp_get_thread_num() noexcept;
}
