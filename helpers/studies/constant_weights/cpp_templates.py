"""The C++ that every generated program shares: lanes, activations, and a dense layer in two forms. Lesson 11.

Nothing here depends on a network. ``cpp_sources`` writes the network's own part below it.
"""

LANES = r"""
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
"""

ACTIVATIONS = r"""
// exp(x) = 2^n exp(r), n the whole number nearest to x / ln 2, so |r| <= ln(2) / 2; exp(r) by its Taylor sum to r^7.
// Arguments are cut to [-87, 88], where the result is a normal float; relative error below 2^-22.
INLINE Lanes exponential(Lanes x) {
    x = at_most(at_least(x, splat(-87.0f)), splat(88.0f));
    const Lanes shift = splat(0x1.8p23f);  // adding it rounds to a whole number, in the lowest bits
    Lanes shifted = x * 0x1.715476p0f + shift;
    Lanes n = shifted - shift;
    Lanes r = x - n * 0x1.62e4p-1f;  // ln 2 in two parts: n times the first is exact
    r = r - n * 0x1.7f7d1cp-20f;
    Lanes sum = splat(1.0f / 5040);
    sum = sum * r + splat(1.0f / 720);
    sum = sum * r + splat(1.0f / 120);
    sum = sum * r + splat(1.0f / 24);
    sum = sum * r + splat(1.0f / 6);
    sum = sum * r + splat(0.5f);
    sum = sum * r + splat(1.0f);
    sum = sum * r + splat(1.0f);
    return lanes_of(bits_of(sum) + (bits_of(shifted) << 23));
}

// Each within 16 roundings (of 2^-24) of the exact value; measured: sigmoid 4.6, tanh 2.9.
INLINE Lanes identity(Lanes x) { return x; }
INLINE Lanes relu(Lanes x) { return at_least(x, Lanes{}); }
INLINE Lanes sigmoid(Lanes x) {  // exp(-|x|) as a square, which may be too small for a normal float
    Lanes root = exponential(lanes_of(bits_of(x) | int32_t(0x80000000u)) * 0.5f), small = root * root;
    return (x < 0.0f ? small : splat(1.0f)) / (1.0f + small);
}
INLINE Lanes tanh(Lanes x) {  // 1 - 2 / (exp(2|x|) + 1); near zero, where that would cancel, the odd Taylor sum
    Lanes size = lanes_of(bits_of(x) & 0x7fffffff), square = x * x;
    Lanes far = 1.0f - 2.0f / (exponential(size + size) + 1.0f);
    far = lanes_of(bits_of(far) | (bits_of(x) & int32_t(0x80000000u)));
    Lanes near = splat(-1382.0f / 155925);
    near = near * square + splat(62.0f / 2835);
    near = near * square + splat(-17.0f / 315);
    near = near * square + splat(2.0f / 15);
    near = near * square + splat(-1.0f / 3);
    near = x + x * (near * square);
    return size < 0.4f ? near : far;
}
"""

SOFTMAX_ON_CANDIDATES = r"""
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
"""

OUTPUTS_ON_LANES = r"""
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
"""

CANDIDATES_ON_LANES = r"""
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
"""

TRANSPOSITION = r"""
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
"""

BLOCKS = r"""
template <int WIDTH>
INLINE void evaluate_block(const float* inputs, float* outputs, const float* parameters) {
    Lanes x[INPUTS][WIDTH], y[OUTPUTS][WIDTH];
    to_lanes<INPUTS, WIDTH>(inputs, x);
    evaluate_lanes<WIDTH>(x, y, parameters);
    from_lanes<OUTPUTS, WIDTH>(y, outputs);
}

// Blocks of GROUP registers of candidates, then of one; what is left lies in a block filled up with zeros.
extern "C" void evaluate(const float* inputs, float* outputs, int64_t candidates, const void* context) {
    const float* parameters = static_cast<const float*>(context);
    for (; candidates >= GROUP * LANES; candidates -= GROUP * LANES) {
        evaluate_block<GROUP>(inputs, outputs, parameters);
        inputs += GROUP * LANES * INPUTS;
        outputs += GROUP * LANES * OUTPUTS;
    }
    for (; candidates >= LANES; candidates -= LANES) {
        evaluate_block<1>(inputs, outputs, parameters);
        inputs += LANES * INPUTS;
        outputs += LANES * OUTPUTS;
    }
    // FEW
    if (candidates > 0) {
        float filled[LANES * INPUTS] = {}, results[LANES * OUTPUTS];
        memcpy(filled, inputs, candidates * INPUTS * sizeof(float));
        evaluate_block<1>(filled, results, parameters);
        memcpy(outputs, results, candidates * OUTPUTS * sizeof(float));
    }
}
"""

FEW = """    if (candidates <= LANES / 2) {  // a register of candidates would stay half empty
        for (; candidates > 0; --candidates, inputs += INPUTS, outputs += OUTPUTS)
            evaluate_one(inputs, outputs, parameters);
    }
"""

ONE_AFTER_ANOTHER = r"""
extern "C" void evaluate(const float* inputs, float* outputs, int64_t candidates, const void* context) {
    const float* parameters = static_cast<const float*>(context);
    for (; candidates > 0; --candidates, inputs += INPUTS, outputs += OUTPUTS)
        evaluate_one(inputs, outputs, parameters);
}
"""
