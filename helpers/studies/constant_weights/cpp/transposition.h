#pragma once
#include "lanes.h"

// Candidates lie one after another in memory; on lanes, a register holds one input of LANES candidates. Between the
// two, four candidates by four inputs are turned at a time, in each quarter of a register at once.
#if defined(__clang__) || __GNUC__ >= 12
#define CHOSEN(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define CHOSEN(a, b, ...) __builtin_shuffle(a, b, Bits{__VA_ARGS__})
#endif
constexpr int one_of_each(int i, int from) { return (i & 1) * LANES + (i & ~3) + ((i & 3) >> 1) + from; }
constexpr int two_of_each(int i, int from) { return (i & 2) / 2 * LANES + (i & ~3) + (i & 1) + from; }
template <int FROM, int... I>
INLINE Lanes singles(Lanes a, Lanes b, std::integer_sequence<int, I...>) {
    return CHOSEN(a, b, one_of_each(I, FROM)...);
}
template <int FROM, int... I>
INLINE Lanes pairs(Lanes a, Lanes b, std::integer_sequence<int, I...>) {
    return CHOSEN(a, b, two_of_each(I, FROM)...);
}

INLINE void turn(Lanes* a) {
    constexpr std::make_integer_sequence<int, LANES> all{};
    Lanes low01 = singles<0>(a[0], a[1], all), high01 = singles<2>(a[0], a[1], all);
    Lanes low23 = singles<0>(a[2], a[3], all), high23 = singles<2>(a[2], a[3], all);
    a[0] = pairs<0>(low01, low23, all);
    a[1] = pairs<2>(low01, low23, all);
    a[2] = pairs<0>(high01, high23, all);
    a[3] = pairs<2>(high01, high23, all);
}

// Four numbers each from LANES / 4 places that lie `stride` apart, and back.
INLINE Lanes load_quarters(const float* from, int stride) {
#if defined(__AVX512F__)
    __m512 value = _mm512_castps128_ps512(_mm_loadu_ps(from));
    value = _mm512_insertf32x4(value, _mm_loadu_ps(from + stride), 1);
    value = _mm512_insertf32x4(value, _mm_loadu_ps(from + 2 * stride), 2);
    return _mm512_insertf32x4(value, _mm_loadu_ps(from + 3 * stride), 3);
#elif defined(__AVX__)
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from)), _mm_loadu_ps(from + stride), 1);
#else
    return load(from);
#endif
}
INLINE void store_quarters(float* to, int stride, Lanes value) {
    float lane[LANES];
    store(lane, value);
    for (int q = 0; q < LANES / 4; ++q) memcpy(to + q * stride, lane + 4 * q, 16);
}

// x[i][k], lane l = input i of candidate k * LANES + l.
template <int COUNT, int WIDTH>
INLINE void to_lanes(const float* from, Lanes (*x)[WIDTH]) {
    for (int k = 0; k < WIDTH; ++k, from += LANES * COUNT) {
        if (COUNT >= 4) {
            for (int i = 0; i < COUNT; i += 4) {
                const int first = i + 4 <= COUNT ? i : COUNT - 4;  // the last four may overlap those before
                Lanes four[4];
                for (int r = 0; r < 4; ++r) four[r] = load_quarters(from + r * COUNT + first, 4 * COUNT);
                turn(four);
                for (int r = 0; r < 4; ++r) x[first + r][k] = four[r];
            }
        } else {
            for (int i = 0; i < COUNT; ++i)
                for (int l = 0; l < LANES; ++l) x[i][k][l] = from[l * COUNT + i];
        }
    }
}

template <int COUNT, int WIDTH>
INLINE void from_lanes(const Lanes (*y)[WIDTH], float* to) {
    for (int k = 0; k < WIDTH; ++k, to += LANES * COUNT) {
        if (COUNT == 1) {
            store(to, y[0][k]);
        } else if (COUNT >= 4) {
            for (int o = 0; o < COUNT; o += 4) {
                const int first = o + 4 <= COUNT ? o : COUNT - 4;
                Lanes four[4];
                for (int r = 0; r < 4; ++r) four[r] = y[first + r][k];
                turn(four);
                for (int r = 0; r < 4; ++r) store_quarters(to + r * COUNT + first, 4 * COUNT, four[r]);
            }
        } else {
            for (int o = 0; o < COUNT; ++o)
                for (int l = 0; l < LANES; ++l) to[l * COUNT + o] = y[o][k][l];
        }
    }
}
