constexpr bool STRAIGHT_LINE = true;
#include "candidates_on_lanes.h"

// What one input or unit is for WIDTH registers of candidates.
template <int WIDTH>
struct Unit {
    Lanes part[WIDTH];
};
template <int WIDTH>
INLINE void begin(Unit<WIDTH>& sum, float bias) {
#pragma GCC unroll 4
    for (int k = 0; k < WIDTH; ++k) sum.part[k] = splat(bias);
}
template <int WIDTH>
INLINE void add(Unit<WIDTH>& sum, const Lanes (&x)[WIDTH], float weight) {
    const Lanes all = splat(weight);
#pragma GCC unroll 4
    for (int k = 0; k < WIDTH; ++k) sum.part[k] += all * x[k];
}
template <Lanes (*FUNCTION)(Lanes), int WIDTH>
INLINE void end(const Unit<WIDTH>& sum, Lanes (&y)[WIDTH]) {
#pragma GCC unroll 4
    for (int k = 0; k < WIDTH; ++k) y[k] = FUNCTION(sum.part[k]);
}
#include "network.h"

INLINE void evaluate_one(const float*, float*, const float*) {}  // a straight line is for registers of candidates
#include "blocks.h"
