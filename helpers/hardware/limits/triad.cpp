#include "team.h"

// a = b + s c, `repeats` times, begun when `threads` threads have arrived; times[0], times[1]: begin and end.
extern "C" void triad_UNROLLED(float* __restrict__ a, const float* __restrict__ b, const float* __restrict__ c, float s,
                               int64_t n, int64_t repeats, int32_t* arrived, int32_t threads, int64_t* times) {
    wait_for_all(arrived, threads);
    times[0] = now_ns();
    for (int64_t repeat = 0; repeat < repeats; ++repeat) {
        #pragma GCC unroll UNROLLED
        for (int64_t i = 0; i < n; ++i) a[i] = b[i] + s * c[i];
        asm volatile("" : : "r"(a), "r"(b), "r"(c) : "memory");
    }
    times[1] = now_ns();
}
