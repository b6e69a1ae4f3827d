#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>
#if defined(__AVX512F__)
#define VECTOR 64
#elif defined(__AVX__)
#define VECTOR 32
#else
#define VECTOR 16
#endif
#if defined(__SSE2__)
#include <immintrin.h>
#endif
constexpr int64_t STEPS = 32;  // additions in single precision before a partial sum is added to a double
typedef float Floats __attribute__((vector_size(VECTOR)));
typedef int32_t FloatBits __attribute__((vector_size(VECTOR)));
typedef uint32_t Words __attribute__((vector_size(VECTOR)));
typedef uint16_t Halves __attribute__((vector_size(VECTOR / 2)));
typedef double Doubles __attribute__((vector_size(VECTOR)));
typedef int64_t DoubleBits __attribute__((vector_size(VECTOR)));

template <class S, class V, class B> struct Plain {
    using Stored = S; using Value = S; using Vector = V; using Bits = B;
    static constexpr int64_t lanes = VECTOR / sizeof(S);
    static V load(const S* p) { V v; std::memcpy(&v, p, sizeof v); return v; }
    static void store(S* p, V v) { std::memcpy(p, &v, sizeof v); }
    static S get(const S* p) { return *p; }
    static void put(S* p, S value) { *p = value; }
};
using F32 = Plain<float, Floats, FloatBits>;
using F64 = Plain<double, Doubles, DoubleBits>;
struct BF16 {  // stored in 16 bits, computed in float32, rounded to the nearest even; NaN stays NaN
    using Stored = uint16_t; using Value = float; using Vector = Floats; using Bits = FloatBits;
    static constexpr int64_t lanes = VECTOR / sizeof(float);
    static Floats load(const uint16_t* p) {
        Halves h; std::memcpy(&h, p, sizeof h);
        return (Floats)(__builtin_convertvector(h, Words) << 16);
    }
    static void store(uint16_t* p, Floats v) {
        Words word = (Words)v, nan = (Words)(v != v);
        Words rounded = (word + 0x7fff + ((word >> 16) & 1)) >> 16;
        Halves h = __builtin_convertvector((rounded & ~nan) | (((word >> 16) | 0x40) & nan), Halves);
        std::memcpy(p, &h, sizeof h);
    }
    static float get(const uint16_t* p) {
        uint32_t word = uint32_t(*p) << 16; float value; std::memcpy(&value, &word, 4); return value;
    }
    static void put(uint16_t* p, float value) {
        uint32_t word; std::memcpy(&word, &value, 4);
        *p = value != value ? uint16_t((word >> 16) | 0x40) : uint16_t((word + 0x7fff + ((word >> 16) & 1)) >> 16);
    }
};

// Written past the caches, which then need not read the line first; on other processors an ordinary store.
// A gradient from this size on is written so: the next reader finds it in no cache.
constexpr int64_t stream_bytes = 1 << 24;
template <class V> static void stream(void* p, V v) {
#if defined(__AVX512F__)
    _mm512_stream_ps((float*)p, (__m512)v);
#elif defined(__AVX__)
    _mm256_stream_ps((float*)p, (__m256)v);
#elif defined(__SSE2__)
    _mm_stream_ps((float*)p, (__m128)v);
#else
    std::memcpy(p, &v, sizeof v);
#endif
}
static void end_of_stream() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

// NaN <= 0 is false, so NaN passes, as it does in torch.
template <class T> static typename T::Vector relu(typename T::Vector v) {
    return (typename T::Vector)((typename T::Bits)v & ~(typename T::Bits)(v <= typename T::Vector{}));
}
template <class T> static typename T::Vector pass(typename T::Vector y, typename T::Vector grad) {
    return (typename T::Vector)((typename T::Bits)grad & ~(typename T::Bits)(y <= typename T::Vector{}));
}

// work(part, begin, end) for `items` in `threads` equal parts; a thread that the system refuses is done here.
template <class F> static void in_parts(int64_t items, int32_t threads, F work) {
    std::vector<std::thread> others;
    for (int32_t part = 1; part < threads; ++part) {
        int64_t begin = items * part / threads, end = items * (part + 1) / threads;
        try { others.emplace_back(work, part, begin, end); }
        catch (const std::system_error&) { work(part, begin, end); }
    }
    work(0, 0, items / threads);
    for (auto& other : others) other.join();
}

// rows(how_many, from, to, apart) for every row of `bytes` from begin to end: the rows of from <= row < to, and, at
// distances of `apart`, of how_many - 1 places more. Whoever wrote or read the tensor before went from its first byte
// to its last, so the end is what the caches still hold: the blocks are taken from the last to the first. Within a
// block several places are worked on in turns: a prefetcher follows each on its own, and stops at the end of a page.
constexpr int64_t block_bytes = 1 << 18;  // of a tensor
template <int PLACES, class F> static void backwards(int64_t begin, int64_t end, int64_t bytes, F rows) {
    int64_t block = std::max<int64_t>(PLACES, block_bytes / bytes);
    for (int64_t stop = end; stop > begin; stop -= block) {
        int64_t start = std::max(begin, stop - block), each = PLACES == 1 ? 0 : (stop - start) / PLACES;
        rows(std::integral_constant<int, PLACES>{}, start, start + each, each);
        rows(std::integral_constant<int, 1>{}, start + each * PLACES, stop, 0);
    }
}

// Sums in double precision become the result's type.
template <class T> static void round_to(void* total_, const std::vector<double>& sums) {
    auto total = (typename T::Stored*)total_;
    for (size_t c = 0; c < sums.size(); ++c) T::put(total + c, typename T::Value(sums[c]));
}

// The length of the repeating pattern: whole turns of channels * inner, whole vectors, at least four of them.
template <class T> static int64_t period_of(int64_t turn) {
    int64_t unit = turn * (T::lanes / std::gcd(turn, T::lanes));
    return unit * ((4 * T::lanes + unit - 1) / unit);
}
