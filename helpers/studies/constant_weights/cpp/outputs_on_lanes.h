#pragma once
#include "activations.h"

constexpr int padded(int count) { return (count + LANES - 1) / LANES * LANES; }

// BLOCKS registers of outputs, from output o on: each input times a row of weights, in SPLIT sums that do not wait for
// each other. The last register of a row may reach into what follows it; those lanes are never used.
template <int INPUTS, int OUTPUTS, int BLOCKS>
INLINE void sum_outputs(const float* x, const float* weights, const float* bias, float* y, int o) {
    constexpr int SPLIT = BLOCKS >= 8 ? 1 : BLOCKS >= 4 ? 2 : 4;
    Lanes sum[SPLIT][BLOCKS] = {};
    for (int v = 0; v < BLOCKS; ++v) sum[0][v] = load(bias + o + v * LANES);
    int i = 0;
    for (; i + SPLIT <= INPUTS; i += SPLIT)
#pragma GCC unroll 4
        for (int s = 0; s < SPLIT; ++s)
#pragma GCC unroll 8
            for (int v = 0; v < BLOCKS; ++v) sum[s][v] += load(weights + (i + s) * OUTPUTS + o + v * LANES) * x[i + s];
    for (; i < INPUTS; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < BLOCKS; ++v) sum[0][v] += load(weights + i * OUTPUTS + o + v * LANES) * x[i];
#pragma GCC unroll 8
    for (int v = 0; v < BLOCKS; ++v) {
        for (int s = 1; s < SPLIT; ++s) sum[0][v] += sum[s][v];
        store(y + o + v * LANES, sum[0][v]);
    }
}

// One output: inputs and weights meet lane by lane, and the lanes are added up.
template <int INPUTS>
INLINE float sum_lanes(const float* x, const float* weights, float bias) {
    float lane[LANES] = {bias};
    if (INPUTS >= LANES) {
        Lanes sum = load(lane);
        for (int i = 0; i + LANES <= INPUTS; i += LANES) sum += load(x + i) * load(weights + i);
        store(lane, sum);
    }
    for (int i = INPUTS / LANES * LANES; i < INPUTS; ++i) lane[0] += x[i] * weights[i];
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
    return lane[0];
}

// y = x * weights + bias for one candidate; y has room for padded(OUTPUTS) numbers.
template <int INPUTS, int OUTPUTS>
INLINE void dense(const float* x, const float* weights, const float* bias, float* y) {
    constexpr int BLOCKS = padded(OUTPUTS) / LANES, REST = BLOCKS % 8;
    if (OUTPUTS == 1) {
        store(y, splat(sum_lanes<INPUTS>(x, weights, bias[0])));
        return;
    }
    for (int v = 0; v + 8 <= BLOCKS; v += 8) sum_outputs<INPUTS, OUTPUTS, 8>(x, weights, bias, y, v * LANES);
    if (REST) sum_outputs<INPUTS, OUTPUTS, REST ? REST : 1>(x, weights, bias, y, (BLOCKS - REST) * LANES);
}

template <int COUNT, Lanes (*FUNCTION)(Lanes)>
INLINE void apply(float* y) {
#pragma GCC unroll 4
    for (int o = 0; o < COUNT; o += LANES) store(y + o, FUNCTION(load(y + o)));
}

template <int COUNT>
INLINE void softmax(float* y) {
    float largest = y[0], sum = 0;
    for (int o = 1; o < COUNT; ++o) largest = y[o] > largest ? y[o] : largest;
    for (int o = 0; o < COUNT; o += LANES) store(y + o, exponential(load(y + o) - largest));
    for (int o = 0; o < COUNT; ++o) sum += y[o];
    for (int o = 0; o < COUNT; ++o) y[o] /= sum;
}
