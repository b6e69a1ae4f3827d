#pragma once
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX__)
#include <immintrin.h>
#endif

// A vector register holds LANES numbers; a block of candidates is GROUP registers wide. ROW outputs are summed at
// once, so that GROUP * ROW sums, a weight and GROUP inputs fit into the processor's registers.
#if defined(__AVX512F__)
constexpr int LANES = 16, GROUP = 4, ROW = 6;  // 32 registers
#elif defined(__AVX__)
constexpr int LANES = 8, GROUP = STRAIGHT_LINE ? 3 : 2, ROW = 4;  // 16 registers
#elif defined(__aarch64__)
constexpr int LANES = 4, GROUP = 4, ROW = 6;  // 32 registers
#else
constexpr int LANES = 4, GROUP = STRAIGHT_LINE ? 3 : 2, ROW = 4;
#endif
typedef float Lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t Bits __attribute__((vector_size(4 * LANES)));
#define INLINE static inline __attribute__((always_inline))

INLINE Lanes splat(float value) { return value - Lanes{}; }  // minus zero changes no bit, and costs nothing
INLINE Lanes load(const float* from) { Lanes value; memcpy(&value, from, sizeof value); return value; }
INLINE void store(float* to, Lanes value) { memcpy(to, &value, sizeof value); }
INLINE Bits bits_of(Lanes value) { Bits bits; memcpy(&bits, &value, sizeof bits); return bits; }
INLINE Lanes lanes_of(Bits bits) { Lanes value; memcpy(&value, &bits, sizeof value); return value; }

// A number that is used several times, held in a register; without this GCC reads it from memory at each use.
#if defined(__AVX__) && !defined(__AVX512F__)
INLINE Lanes held(Lanes value) { asm("" : "+x"(value)); return value; }
#else
INLINE Lanes held(Lanes value) { return value; }
#endif

// The larger and the smaller of two numbers; of a NaN in `value`, that NaN.
#if defined(__AVX512F__)
INLINE Lanes at_least(Lanes value, Lanes low) { return _mm512_max_ps(low, value); }
INLINE Lanes at_most(Lanes value, Lanes high) { return _mm512_min_ps(high, value); }
#elif defined(__AVX__)
INLINE Lanes at_least(Lanes value, Lanes low) { return _mm256_max_ps(low, value); }
INLINE Lanes at_most(Lanes value, Lanes high) { return _mm256_min_ps(high, value); }
#else
INLINE Lanes at_least(Lanes value, Lanes low) { return low > value ? low : value; }
INLINE Lanes at_most(Lanes value, Lanes high) { return high < value ? high : value; }
#endif
