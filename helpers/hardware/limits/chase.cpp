#include <cstdint>
extern "C" uint64_t chase(const uint64_t* next, uint64_t index, uint64_t steps) {
    for (uint64_t step = 0; step < steps; ++step) index = next[index];
    return index;
}
