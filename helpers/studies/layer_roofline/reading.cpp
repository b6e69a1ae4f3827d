// Writes to total the sum of n floats at w, where n is a multiple of 16 STREAMS. They are read as STREAMS parts side by side,
// because one part after the other keeps fewer lines in flight, and each part is asked for AHEAD floats early.
#include <cstdint>
#include <cstring>
typedef float Vector __attribute__((vector_size(64)));
extern "C" void read_all(const float* w, int64_t n, float* total) {
    Vector sums[STREAMS] = {};
    const int64_t part = n / STREAMS;
    for (int64_t i = 0; i < part; i += 16)
        for (int64_t stream = 0; stream < STREAMS; ++stream) {
            const float* from = w + stream * part + i;
            __builtin_prefetch(from + AHEAD);
            Vector values;
            memcpy(&values, from, sizeof values);
            sums[stream] += values;
        }
    *total = 0;
    for (const Vector& sum : sums)
        for (int64_t lane = 0; lane < 16; ++lane) *total += sum[lane];
}
