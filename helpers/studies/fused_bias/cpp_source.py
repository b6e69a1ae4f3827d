"""The one-pass kernels as a C++ program, for any processor: the compiler's own vectors, threads of the standard.

A tensor is (outer, channels, inner): NCHW is (N, C, H W), channels-last (N H W, C, 1). Rows of at least one vector are
worked on as rows with one bias each; shorter ones as one flat array over which a pattern of biases repeats.
"""

from __future__ import annotations

from helpers.studies.fused_bias.cpp_pool_source import POOL

STEPS = 32  # additions in single precision before a partial sum is added to a double
STREAM_BYTES = 2**24  # a gradient from this size on is written past the caches: the next reader finds it in none
DTYPES = {"float32": "f32", "float64": "f64", "bfloat16": "bf16"}
POOL_DTYPES = {"float32": "f32", "float64": "f64"}

_SHAPE = "int64_t outer, int64_t channels, int64_t inner, int32_t threads"
BIAS_RELU = f"void bias_relu_{{}}(const void* x, const void* bias, void* out, {_SHAPE})"
BIAS_GRADIENT = f"void bias_gradient_{{}}(const void* grad, double* total, {_SHAPE})"
RELU_BIAS_BACKWARD = (f"void relu_bias_backward_{{}}(const void* grad, const void* y, void* grad_x, double* total, "
                      f"{_SHAPE})")  # fmt: skip
_IMAGES = "int64_t images, int64_t channels, int64_t height, int64_t width, int32_t last, int32_t threads"
BIAS_RELU_POOL = (f"void bias_relu_pool_{{}}(const void* x, const void* bias, void* out, uint8_t* place, "
                  f"{_IMAGES})")  # fmt: skip
POOL_BACKWARD = (f"void bias_relu_pool_backward_{{}}(const void* grad, const uint8_t* place, void* grad_x, "
                 f"double* total, {_IMAGES})")  # fmt: skip

_COMMON = """#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <system_error>
#include <thread>
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
    if (inner >= lanes) {
        in_parts(outer * channels, threads, [=](int32_t, int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
                const E* from = x + row * inner;
                E* to = out + row * inner;
                V b = V{} + T::get(bias + row % channels);
                V rest = T::load(from + inner - lanes);  // read before the row is written: out may be x
                for (int64_t i = 0; i + lanes <= inner; i += lanes) T::store(to + i, relu<T>(T::load(from + i) + b));
                T::store(to + inner - lanes, relu<T>(rest + b));
            }
        });
        return;
    }
    int64_t total = outer * channels * inner, period = period_of<T>(channels * inner);
    std::vector<E> pattern(period);
    for (int64_t j = 0; j < period; ++j) pattern[j] = bias[j / inner % channels];
    const E* biases = pattern.data();
    in_parts(total / period, threads, [=](int32_t, int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            for (int64_t j = 0; j < period; j += lanes)
                T::store(out + row * period + j, relu<T>(T::load(x + row * period + j) + T::load(biases + j)));
    });
    for (int64_t i = total / period * period; i < total; ++i) {
        auto value = T::get(x + i) + T::get(biases + i % period);
        T::put(out + i, value <= 0 ? 0 : value);
    }
}
"""

_BACKWARD = """
// One pass over grad (and y): what passes the ReLU is written to grad_x and added to its channel's total.
template <class T, bool RELU> static void totals(const void* grad_, const void* y_, void* grad_x_, double* total,
                                                 int64_t outer, int64_t channels, int64_t inner, int32_t threads) {
    using E = typename T::Stored;
    using V = typename T::Vector;
    using B = typename T::Bits;
    auto grad = (const E*)grad_, y = (const E*)y_;
    auto grad_x = (E*)grad_x_;
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
    if (inner >= lanes) {
        std::vector<double> sums(threads * channels * lanes, 0.0);
        double* all = sums.data();
        in_parts(outer * channels, threads, [=](int32_t part, int64_t begin, int64_t end) {
            B last;  // the lanes of the row's last vector that no other vector holds
            for (int64_t k = 0; k < lanes; ++k) last[k] = k >= lanes - inner % lanes ? -1 : 0;
            for (int64_t row = begin; row < end; ++row) {
                double* sum = all + (part * channels + row % channels) * lanes;
                int64_t i = row * inner, stop = i + inner;
                while (i + lanes <= stop) {
                    V a{}, b{}, c{}, d{};
                    for (int64_t step = 0; step < STEPS && i + 4 * lanes <= stop; ++step, i += 4 * lanes) {
                        a += passed(i); b += passed(i + lanes); c += passed(i + 2 * lanes); d += passed(i + 3 * lanes);
                    }
                    for (int64_t step = 0; step < 3 && i + lanes <= stop; ++step, i += lanes) a += passed(i);
                    a = (a + b) + (c + d);
                    for (int64_t k = 0; k < lanes; ++k) sum[k] += a[k];
                }
                if (i < stop) {
                    V rest = (V)((B)passed(stop - lanes) & last);
                    for (int64_t k = 0; k < lanes; ++k) sum[k] += rest[k];
                }
            }
            end_of_stream();
        });
        for (int64_t j = 0; j < threads * channels * lanes; ++j) total[j / lanes % channels] += sums[j];
        return;
    }
    int64_t count = outer * channels * inner, period = period_of<T>(channels * inner);
    std::vector<double> sums(threads * period, 0.0);
    double* all = sums.data();
    in_parts(count / period, threads, [=](int32_t part, int64_t begin, int64_t end) {
        for (int64_t block = begin; block < end; block += STEPS) {
            int64_t stop = std::min(block + STEPS, end), j = 0;
            double* sum = all + part * period;
            for (; j + 4 * lanes <= period; j += 4 * lanes) {
                V a{}, b{}, c{}, d{};
                for (int64_t row = block; row < stop; ++row) {
                    int64_t i = row * period + j;
                    a += passed(i); b += passed(i + lanes); c += passed(i + 2 * lanes); d += passed(i + 3 * lanes);
                }
                for (int64_t k = 0; k < lanes; ++k) {
                    sum[j + k] += a[k]; sum[j + lanes + k] += b[k];
                    sum[j + 2 * lanes + k] += c[k]; sum[j + 3 * lanes + k] += d[k];
                }
            }
            for (; j < period; j += lanes) {
                V a{};
                for (int64_t row = block; row < stop; ++row) a += passed(row * period + j);
                for (int64_t k = 0; k < lanes; ++k) sum[j + k] += a[k];
            }
        }
        end_of_stream();
    });
    for (int64_t j = 0; j < threads * period; ++j) total[j % period / inner % channels] += sums[j];
    for (int64_t i = count / period * period; i < count; ++i) {
        auto value = T::get(grad + i);
        if constexpr (RELU) { value = T::get(y + i) <= 0 ? 0 : value; T::put(grad_x + i, value); }
        total[i / inner % channels] += value;
    }
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


def source(kind: str) -> str:
    """Return the C++ program of the element-wise and reducing kernels for ``kind``, a value of :data:`DTYPES`.

    Lesson 12.
    """
    exported = _EXPORTED.format(
        kind=kind.upper(), bias_relu=BIAS_RELU.format(kind), bias_gradient=BIAS_GRADIENT.format(kind),
        relu_bias_backward=RELU_BIAS_BACKWARD.format(kind),
    )  # fmt: skip
    return "".join([_common(), _FORWARD, _BACKWARD, exported])


def pool_source(kind: str) -> str:
    """Return the C++ program of the kernels with max pooling for ``kind``, a value of :data:`POOL_DTYPES`.

    Lesson 12.
    """
    exported = _EXPORTED_POOL.format(
        kind=kind.upper(), pool=BIAS_RELU_POOL.format(kind), backward=POOL_BACKWARD.format(kind)
    )
    return "".join([_common(), POOL, exported])


def _common() -> str:
    return _COMMON.replace("__STEPS__", str(STEPS)).replace("__STREAM_BYTES__", str(STREAM_BYTES))
