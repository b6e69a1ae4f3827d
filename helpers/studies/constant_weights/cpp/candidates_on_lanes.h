#pragma once
#include "activations.h"
#include "transposition.h"

// Softmax over the outputs y[0..COUNT) of each candidate; they lie in COUNT registers.
template <int COUNT, int WIDTH>
INLINE void softmax(Lanes (*y)[WIDTH]) {
    for (int k = 0; k < WIDTH; ++k) {
        Lanes largest = y[0][k], sum{};
        for (int o = 1; o < COUNT; ++o) largest = y[o][k] > largest ? y[o][k] : largest;
        for (int o = 0; o < COUNT; ++o) sum += y[o][k] = exponential(y[o][k] - largest);
        for (int o = 0; o < COUNT; ++o) y[o][k] /= sum;
    }
}

// ROWS outputs from output o on, for WIDTH registers of candidates: a weight is read once and used for all of them.
template <int INPUTS, int OUTPUTS, int ROWS, int WIDTH>
INLINE void sum_candidates(const Lanes (*x)[WIDTH], const float* weights, const float* bias, Lanes (*y)[WIDTH], int o) {
    constexpr int SPLIT = ROWS * WIDTH >= 8 ? 1 : ROWS * WIDTH >= 4 ? 2 : 4;
    Lanes sum[SPLIT][ROWS][WIDTH] = {};
    for (int m = 0; m < ROWS; ++m)
        for (int k = 0; k < WIDTH; ++k) sum[0][m][k] = splat(bias[o + m]);
    int i = 0;
    for (; i + SPLIT <= INPUTS; i += SPLIT)
#pragma GCC unroll 4
        for (int s = 0; s < SPLIT; ++s) {
            Lanes input[WIDTH];
#pragma GCC unroll 4
            for (int k = 0; k < WIDTH; ++k) input[k] = held(x[i + s][k]);
#pragma GCC unroll 8
            for (int m = 0; m < ROWS; ++m) {
                const Lanes weight = splat(weights[(i + s) * OUTPUTS + o + m]);
#pragma GCC unroll 4
                for (int k = 0; k < WIDTH; ++k) sum[s][m][k] += weight * input[k];
            }
        }
    for (; i < INPUTS; ++i)
#pragma GCC unroll 8
        for (int m = 0; m < ROWS; ++m)
#pragma GCC unroll 4
            for (int k = 0; k < WIDTH; ++k) sum[0][m][k] += weights[i * OUTPUTS + o + m] * x[i][k];
#pragma GCC unroll 8
    for (int m = 0; m < ROWS; ++m)
#pragma GCC unroll 4
        for (int k = 0; k < WIDTH; ++k) {
            for (int s = 1; s < SPLIT; ++s) sum[0][m][k] += sum[s][m][k];
            y[o + m][k] = sum[0][m][k];
        }
}

template <int INPUTS, int OUTPUTS, int WIDTH>
INLINE void dense(const Lanes (*x)[WIDTH], const float* weights, const float* bias, Lanes (*y)[WIDTH]) {
    constexpr int REST = OUTPUTS % ROW;
    for (int o = 0; o + ROW <= OUTPUTS; o += ROW)
        sum_candidates<INPUTS, OUTPUTS, ROW, WIDTH>(x, weights, bias, y, o);
    if (REST) sum_candidates<INPUTS, OUTPUTS, REST ? REST : 1, WIDTH>(x, weights, bias, y, OUTPUTS - REST);
}

template <int COUNT, Lanes (*FUNCTION)(Lanes), int WIDTH>
INLINE void apply(Lanes (*y)[WIDTH]) {
    for (int o = 0; o < COUNT; ++o)
#pragma GCC unroll 4
        for (int k = 0; k < WIDTH; ++k) y[o][k] = FUNCTION(y[o][k]);
}
