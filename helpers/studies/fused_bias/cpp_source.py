"""The one-pass kernels as a C++ program, for any processor: the compiler's own vectors, threads of the standard.

A tensor is (outer, channels, inner): NCHW is (N, C, H W), channels-last (N H W, C, 1). Rows of at least one vector are
worked on as rows with one bias each; shorter ones as one flat array over which a pattern of biases repeats.
"""

from __future__ import annotations

from helpers.studies.fused_bias.cpp_convolution_source import CONVOLUTION as _CONVOLUTION
from helpers.studies.fused_bias.cpp_pool_source import POOL

STEPS = 32  # additions in single precision before a partial sum is added to a double
STREAMS = 4  # places of a block that a kernel works on in turns: see _COMMON
RELU_STREAMS = 2  # the same for the ReLU's gradient, which has three tensors
BLOCK_BYTES = 2**18  # of a tensor, worked on from its last block to its first: see _COMMON
STREAM_BYTES = 2**24  # a gradient from this size on is written past the caches: the next reader finds it in none
DTYPES = {"float32": "f32", "float64": "f64", "bfloat16": "bf16"}
POOL_DTYPES = {"float32": "f32", "float64": "f64"}

_SHAPE = "int64_t outer, int64_t channels, int64_t inner, int32_t threads"
BIAS_RELU = f"void bias_relu_{{}}(const void* x, const void* bias, void* out, {_SHAPE})"
BIAS_GRADIENT = f"void bias_gradient_{{}}(const void* grad, void* total, {_SHAPE})"
RELU_BIAS_BACKWARD = (f"void relu_bias_backward_{{}}(const void* grad, const void* y, void* grad_x, void* total, "
                      f"{_SHAPE})")  # fmt: skip
_IMAGES = "int64_t images, int64_t channels, int64_t height, int64_t width, int32_t last, int32_t threads"
BIAS_RELU_POOL = (f"void bias_relu_pool_{{}}(const void* x, const void* bias, void* out, uint8_t* place, "
                  f"{_IMAGES})")  # fmt: skip
POOL_BACKWARD = (f"void bias_relu_pool_backward_{{}}(const void* grad, const uint8_t* place, void* grad_x, "
                 f"void* total, {_IMAGES})")  # fmt: skip
CONVOLUTION = ("void convolution_{}(const void* x, const void* weight, const void* bias, void* out, uint8_t* place, "
               "int64_t images, int64_t depth, int64_t height, int64_t width, int64_t channels, int64_t of_out, "
               "int64_t of_in, int64_t of_y, int64_t of_x, int32_t tiled, int32_t threads)")  # fmt: skip

_COMMON = """#include <algorithm>
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
#define STEPS __STEPS__
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
constexpr int64_t stream_bytes = __STREAM_BYTES__;
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
constexpr int64_t block_bytes = __BLOCK_BYTES__;
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
"""

_FORWARD = """
template <class T> static void bias_relu(const void* x_, const void* bias_, void* out_, int64_t outer,
                                         int64_t channels, int64_t inner, int32_t threads) {
    using E = typename T::Stored;
    using V = typename T::Vector;
    auto x = (const E*)x_, bias = (const E*)bias_;
    auto out = (E*)out_;
    constexpr int64_t lanes = T::lanes;
    constexpr int streams = __STREAMS__;
    if (inner >= lanes) {
        in_parts(outer * channels, threads, [=](int32_t, int64_t begin, int64_t end) {
            auto rows = [=](auto how_many, int64_t from, int64_t to, int64_t apart) {
                constexpr int S = decltype(how_many)::value;
                for (int64_t row = from; row < to; ++row) {
                    int64_t at[S];
                    V b[S], rest[S];
                    for (int s = 0; s < S; ++s) {
                        at[s] = (row + s * apart) * inner;
                        b[s] = V{} + T::get(bias + (row + s * apart) % channels);
                        rest[s] = T::load(x + at[s] + inner - lanes);  // before the row is written: out may be x
                    }
                    for (int64_t i = 0; i + lanes <= inner; i += lanes)
                        for (int s = 0; s < S; ++s)
                            T::store(out + at[s] + i, relu<T>(T::load(x + at[s] + i) + b[s]));
                    for (int s = 0; s < S; ++s) T::store(out + at[s] + inner - lanes, relu<T>(rest[s] + b[s]));
                }
            };
            backwards<streams>(begin, end, inner * sizeof(E), rows);
        });
        return;
    }
    int64_t total = outer * channels * inner, period = period_of<T>(channels * inner);
    std::vector<E> pattern(period);
    for (int64_t j = 0; j < period; ++j) pattern[j] = bias[j / inner % channels];
    const E* biases = pattern.data();
    for (int64_t i = total / period * period; i < total; ++i) {
        auto value = T::get(x + i) + T::get(biases + i % period);
        T::put(out + i, value <= 0 ? 0 : value);
    }
    in_parts(total / period, threads, [=](int32_t, int64_t begin, int64_t end) {
        auto rows = [=](auto how_many, int64_t from, int64_t to, int64_t apart) {
            constexpr int S = decltype(how_many)::value;
            for (int64_t row = from; row < to; ++row)
                for (int64_t j = 0; j < period; j += lanes)
                    for (int s = 0; s < S; ++s) {
                        int64_t i = (row + s * apart) * period + j;
                        T::store(out + i, relu<T>(T::load(x + i) + T::load(biases + j)));
                    }
        };
        backwards<streams>(begin, end, period * sizeof(E), rows);
    });
}
"""

_BACKWARD = """
// One pass over grad (and y): what passes the ReLU is written to grad_x and added to its channel's total.
template <class T, bool RELU> static void totals(const void* grad_, const void* y_, void* grad_x_, void* total_,
                                                 int64_t outer, int64_t channels, int64_t inner, int32_t threads) {
    using E = typename T::Stored;
    using V = typename T::Vector;
    using B = typename T::Bits;
    auto grad = (const E*)grad_, y = (const E*)y_;
    auto grad_x = (E*)grad_x_;
    std::vector<double> total(channels, 0.0);
    constexpr int64_t lanes = T::lanes;
    // A result beyond the caches is streamed to memory, where its rows begin on the boundary of a vector.
    bool streamed = RELU && sizeof(E) == sizeof(typename T::Value) && (uintptr_t)grad_x_ % VECTOR == 0
        && (inner < lanes || inner % lanes == 0)
        && outer * channels * inner * int64_t(sizeof(E)) >= stream_bytes;
    auto passed = [=](int64_t i) {
        V g = T::load(grad + i);
        if constexpr (RELU) {
            g = pass<T>(T::load(y + i), g);
            if (streamed) stream(grad_x + i, g); else T::store(grad_x + i, g);
        }
        return g;
    };
    constexpr int streams = RELU ? __RELU_STREAMS__ : __STREAMS__;
    // What is written past the caches is written in one place, since a core has few buffers for it.
    auto in_blocks = [=](int64_t begin, int64_t end, int64_t bytes, auto rows) {
        streamed ? backwards<1>(begin, end, bytes, rows) : backwards<streams>(begin, end, bytes, rows);
        end_of_stream();
    };
    if (inner >= lanes) {
        std::vector<double> sums(threads * channels * lanes, 0.0);
        double* all = sums.data();
        in_parts(outer * channels, threads, [=](int32_t part, int64_t begin, int64_t end) {
            B last;  // the lanes of the row's last vector that no other vector holds
            for (int64_t k = 0; k < lanes; ++k) last[k] = k >= lanes - inner % lanes ? -1 : 0;
            auto rows = [=](auto how_many, int64_t from, int64_t to, int64_t apart) {
                constexpr int S = decltype(how_many)::value, W = S == 1 ? 4 : 2;
                for (int64_t row = from; row < to; ++row) {
                    double* sum[S];
                    int64_t at[S], i = 0;
                    for (int s = 0; s < S; ++s) {
                        at[s] = (row + s * apart) * inner;
                        sum[s] = all + (part * channels + (row + s * apart) % channels) * lanes;
                    }
                    while (i + lanes <= inner) {
                        V a[S][W] = {};
                        for (int64_t step = 0; step < STEPS && i + W * lanes <= inner; ++step, i += W * lanes)
                            for (int s = 0; s < S; ++s)
                                for (int w = 0; w < W; ++w) a[s][w] += passed(at[s] + i + w * lanes);
                        for (int64_t step = 1; step < W && i + lanes <= inner; ++step, i += lanes)
                            for (int s = 0; s < S; ++s) a[s][0] += passed(at[s] + i);
                        for (int s = 0; s < S; ++s) {
                            V whole = a[s][0] + a[s][1];
                            if constexpr (W == 4) whole += a[s][2] + a[s][3];
                            for (int64_t k = 0; k < lanes; ++k) sum[s][k] += whole[k];
                        }
                    }
                    for (int s = 0; s < S && i < inner; ++s) {
                        V rest = (V)((B)passed(at[s] + inner - lanes) & last);
                        for (int64_t k = 0; k < lanes; ++k) sum[s][k] += rest[k];
                    }
                }
            };
            in_blocks(begin, end, inner * sizeof(E), rows);
        });
        for (int64_t j = 0; j < threads * channels * lanes; ++j) total[j / lanes % channels] += sums[j];
        round_to<T>(total_, total);
        return;
    }
    int64_t count = outer * channels * inner, period = period_of<T>(channels * inner);
    std::vector<double> sums(threads * period, 0.0);
    double* all = sums.data();
    in_parts(count / period, threads, [=](int32_t part, int64_t begin, int64_t end) {
        double* sum = all + part * period;
        auto columns = [=](auto how_many, auto vectors, int64_t j, int64_t first, int64_t stop, int64_t apart) {
            constexpr int S = decltype(how_many)::value, W = decltype(vectors)::value;
            V a[W] = {};
            for (int64_t i = first * period + j; i < stop * period; i += period)
                for (int w = 0; w < W; ++w) {
                    V v[S];
                    for (int s = 0; s < S; ++s) v[s] = passed(i + s * apart * period + w * lanes);
                    if constexpr (S == 4) v[0] = (v[0] + v[1]) + (v[2] + v[3]);
                    else for (int s = 1; s < S; ++s) v[0] += v[s];
                    a[w] += v[0];
                }
            for (int w = 0; w < W; ++w)
                for (int64_t k = 0; k < lanes; ++k) sum[j + w * lanes + k] += a[w][k];
        };
        auto rows = [=](auto how_many, int64_t from, int64_t to, int64_t apart) {
            for (int64_t block = from; block < to; block += STEPS) {
                int64_t stop = std::min(block + STEPS, to), j = 0;
                for (; j + 4 * lanes <= period; j += 4 * lanes)
                    columns(how_many, std::integral_constant<int, 4>{}, j, block, stop, apart);
                for (; j < period; j += lanes)
                    columns(how_many, std::integral_constant<int, 1>{}, j, block, stop, apart);
            }
        };
        in_blocks(begin, end, period * sizeof(E), rows);
    });
    for (int64_t j = 0; j < threads * period; ++j) total[j % period / inner % channels] += sums[j];
    for (int64_t i = count / period * period; i < count; ++i) {
        auto value = T::get(grad + i);
        if constexpr (RELU) { value = T::get(y + i) <= 0 ? 0 : value; T::put(grad_x + i, value); }
        total[i / inner % channels] += value;
    }
    round_to<T>(total_, total);
}
"""

_EXPORTED = """
extern "C" {{
{bias_relu} {{ bias_relu<{kind}>(x, bias, out, outer, channels, inner, threads); }}
{bias_gradient} {{ totals<{kind}, false>(grad, nullptr, nullptr, total, outer, channels, inner, threads); }}
{relu_bias_backward} {{ totals<{kind}, true>(grad, y, grad_x, total, outer, channels, inner, threads); }}
}}
"""
_EXPORTED_POOL = """
extern "C" {{
{pool} {{ bias_relu_pool<{kind}>(x, bias, out, place, images, channels, height, width, last, threads); }}
{backward} {{
    bias_relu_pool_backward<{kind}>(grad, place, grad_x, total, images, channels, height, width, last, threads);
}}
}}
"""
_EXPORTED_CONVOLUTION = """
extern "C" {{
{convolution} {{
    Layer<{kind}> layer(x, weight, bias, out, place, depth, height, width, channels, of_out, of_in, of_y, of_x);
    if (tiled) winograd<{kind}>(layer, images, threads);
    else if (depth == 1) direct<{kind}, 3>(layer, images, threads);
    else direct<{kind}, 0>(layer, images, threads);
}}
}}
"""


def source(kind: str) -> str:
    """Return the C++ program of the element-wise and reducing kernels for ``kind``, a value of :data:`DTYPES`.

    Lesson 12.
    """
    exported = _EXPORTED.format(
        kind=kind.upper(), bias_relu=BIAS_RELU.format(kind), bias_gradient=BIAS_GRADIENT.format(kind),
        relu_bias_backward=RELU_BIAS_BACKWARD.format(kind),
    )  # fmt: skip
    program = "".join([_common(), _FORWARD, _BACKWARD, exported])
    return program.replace("__RELU_STREAMS__", str(RELU_STREAMS)).replace("__STREAMS__", str(STREAMS))


def pool_source(kind: str) -> str:
    """Return the C++ program of the kernels with max pooling for ``kind``, a value of :data:`POOL_DTYPES`.

    Lesson 12.
    """
    exported = _EXPORTED_POOL.format(
        kind=kind.upper(), pool=BIAS_RELU_POOL.format(kind), backward=POOL_BACKWARD.format(kind)
    )
    return "".join([_common(), POOL, exported])


def convolution_source(kind: str) -> str:
    """Return the C++ program of the convolution with bias, ReLU and pooling, for a value of :data:`POOL_DTYPES`.

    Lesson 12.
    """
    exported = _EXPORTED_CONVOLUTION.format(kind=kind.upper(), convolution=CONVOLUTION.format(kind))
    return "".join([_common(), POOL, _CONVOLUTION, exported])


def _common() -> str:
    sizes = {"__STEPS__": STEPS, "__STREAM_BYTES__": STREAM_BYTES, "__BLOCK_BYTES__": BLOCK_BYTES}
    program = _COMMON
    for name, size in sizes.items():
        program = program.replace(name, str(size))
    return program
