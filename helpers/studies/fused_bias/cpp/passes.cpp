// The one-pass kernels for any processor: the compiler's own vectors, threads of the standard. KIND is F32, F64, BF16.
// A tensor is (outer, channels, inner): NCHW is (N, C, H W), channels-last (N H W, C, 1). Rows of at least one vector
// are worked on as rows with one bias each; shorter ones as one flat array over which a pattern of biases repeats.
#include "common.h"

template <class T> static void bias_relu(const void* x_, const void* bias_, void* out_, int64_t outer,
                                         int64_t channels, int64_t inner, int32_t threads) {
    using E = typename T::Stored;
    using V = typename T::Vector;
    auto x = (const E*)x_, bias = (const E*)bias_;
    auto out = (E*)out_;
    constexpr int64_t lanes = T::lanes;
    constexpr int streams = 4;  // places of a block that are worked on in turns: see backwards
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
    constexpr int streams = RELU ? 2 : 4;  // the ReLU's gradient has three tensors
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

extern "C" void bias_relu(const void* x, const void* bias, void* out, int64_t outer, int64_t channels, int64_t inner,
                int32_t threads) {
    bias_relu<KIND>(x, bias, out, outer, channels, inner, threads);
}

extern "C" void bias_gradient(const void* grad, void* total, int64_t outer, int64_t channels, int64_t inner,
                int32_t threads) {
    totals<KIND, false>(grad, nullptr, nullptr, total, outer, channels, inner, threads);
}

extern "C" void relu_bias_backward(const void* grad, const void* y, void* grad_x, void* total, int64_t outer,
                int64_t channels, int64_t inner, int32_t threads) {
    totals<KIND, true>(grad, y, grad_x, total, outer, channels, inner, threads);
}
