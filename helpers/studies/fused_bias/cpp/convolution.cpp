// A 3 x 3 convolution with bias, ReLU and 2 x 2 max pooling in one kernel: nothing between them is written. KIND is
// F32 or F64. Channels lie last. Two vectors of output channels of up to six neighbouring pixels stay in registers
// while the inputs, one broadcast a pixel, and the weights, packed in the order of their use, pass by: enough sums
// to hide the latency of a multiply-add. What is pooled is taken from a small buffer that is still in the L1.
//
// `direct` adds the nine products a channel. `winograd` is F(2 x 2, 3 x 3) of Lavin and Gray (2016, "Fast Algorithms
// for Convolutional Neural Networks"): a tile of 4 x 4 inputs is transformed, multiplied by the transformed weights and
// transformed back to 2 x 2 outputs, which takes 16 products a channel instead of 36; the 2 x 2 are what is pooled.
#include "largest.h"

constexpr int64_t wide = 2;    // vectors of output channels in a block
constexpr int64_t across = 6;  // pixels, or tiles, in a block at most: with `wide`, twelve sums in registers
constexpr int64_t tiles_at_once = 2 * across;

// Numbers on the boundary of a cache line, zero at first.
template <class E> struct Aligned {
    std::vector<E> all;
    E* data;
    explicit Aligned(int64_t n) : all(n + 64 / sizeof(E), E(0)) {
        data = (E*)(((uintptr_t)all.data() + 63) / 64 * 64);
    }
};

// For P pixels that lie `step` apart: bias + the sums of `taps` neighbours in each of ROWS rows, times their weights;
// where TAPS is not 0 the compiler knows `taps`, and that `step` is 1.
// Not inlined: beside each other in one function, GCC 12 mixes the blocks and runs out of registers.
template <class T, int P, int ROWS, int TAPS>
__attribute__((noinline)) static void pixels(const typename T::Stored* x, int64_t row, int64_t step, int64_t taps,
    const typename T::Stored* weight, const typename T::Stored* bias, typename T::Stored* out) {
    using V = typename T::Vector;
    constexpr int64_t lanes = T::lanes;
    if (TAPS) { taps = TAPS; step = 1; }
    V sum[P][wide];
    for (int p = 0; p < P; ++p)
        for (int v = 0; v < wide; ++v) sum[p][v] = T::load(bias + v * lanes);
#pragma GCC unroll 1
    for (int y = 0; y < ROWS; ++y) {
        const typename T::Stored* from = x + y * row;
        for (int64_t j = 0; j < taps; ++j, weight += wide * lanes) {
            V w[wide];
            for (int v = 0; v < wide; ++v) w[v] = T::load(weight + v * lanes);
            for (int p = 0; p < P; ++p) {
                V one = from[p * step + j] - V{};  // in every lane: less zero is itself, -0 too
                for (int v = 0; v < wide; ++v) sum[p][v] += one * w[v];
            }
        }
    }
    for (int p = 0; p < P; ++p)
        for (int v = 0; v < wide; ++v) T::store(out + (p * wide + v) * lanes, sum[p][v]);
}

template <class T, int ROWS, int TAPS>
static void line_of_pixels(int64_t count, const typename T::Stored* x, int64_t row, int64_t step, int64_t taps,
    const typename T::Stored* weight, const typename T::Stored* bias, typename T::Stored* out) {
    int64_t blocks = (count + across - 1) / across;
    for (int64_t block = 0; block < blocks; ++block) {  // of equal lengths, to within one
        int64_t begin = count * block / blocks, length = count * (block + 1) / blocks - begin;
        auto from = x + begin * step;
        auto to = out + begin * wide * T::lanes;
        switch (length) {
            case 1: pixels<T, 1, ROWS, TAPS>(from, row, step, taps, weight, bias, to); break;
            case 2: pixels<T, 2, ROWS, TAPS>(from, row, step, taps, weight, bias, to); break;
            case 3: pixels<T, 3, ROWS, TAPS>(from, row, step, taps, weight, bias, to); break;
            case 4: pixels<T, 4, ROWS, TAPS>(from, row, step, taps, weight, bias, to); break;
            case 5: pixels<T, 5, ROWS, TAPS>(from, row, step, taps, weight, bias, to); break;
            default: pixels<T, 6, ROWS, TAPS>(from, row, step, taps, weight, bias, to);
        }
    }
}

// The largest of four after the ReLU without its place: NaN before all.
template <class T> static inline typename T::Vector only_largest(typename T::Vector a, typename T::Vector b,
                                                                 typename T::Vector c, typename T::Vector d) {
    using B = typename T::Bits;
    auto larger = [](typename T::Vector p, typename T::Vector q) {
        return choose<T>((B)(q > p) | (B)(q != q), q, p);
    };
    return relu<T>(larger(larger(a, b), larger(c, d)));
}

template <class T> struct Layer {
    using E = typename T::Stored;
    using V = typename T::Vector;
    using B = typename T::Bits;
    static constexpr int64_t lanes = T::lanes, together = wide * lanes;
    const E* x;  // (images, height, width, depth)
    E* out;      // (images, height / 2, width / 2, channels)
    uint8_t* places;  // as out, or null: then only the maxima are written
    int64_t depth, height, width, channels;
    int64_t rows, columns, groups, row, taps;  // row: numbers in a padded row of x
    Aligned<E> packed, biases;  // weights (group, y, x, depth, together), zero beyond the last channel

    Layer(const void* x_, const void* weight_, const void* bias_, void* out_, uint8_t* places_, int64_t depth_,
          int64_t height_, int64_t width_, int64_t channels_, int64_t of_out, int64_t of_in, int64_t of_y, int64_t of_x)
        : x((const E*)x_), out((E*)out_), places(places_), depth(depth_), height(height_), width(width_),
          channels(channels_), rows(height_ / 2), columns(width_ / 2), groups((channels_ + together - 1) / together),
          row((width_ + 2) * depth_), taps(3 * depth_), packed(groups * 3 * taps * together),
          biases(groups * together) {
        for (int64_t o = 0; o < channels; ++o) {
            E* to = packed.data + o / together * 3 * taps * together + o % together;
            biases.data[o] = ((const E*)bias_)[o];
            for (int64_t y = 0; y < 3; ++y)
                for (int64_t k = 0; k < 3; ++k)
                    for (int64_t c = 0; c < depth; ++c, to += together)
                        *to = ((const E*)weight_)[o * of_out + c * of_in + y * of_y + k * of_x];
        }
    }

    int64_t padded_size() const { return (height + 2) * row; }

    void pad(int64_t image, E* padded) const {  // the border is zero and stays so
        for (int64_t y = 0; y < height; ++y)
            std::copy_n(x + (image * height + y) * width * depth, width * depth, padded + (y + 1) * row + depth);
    }

    // Pool four(first channel) for the channels of a group at output pixel `at`.
    template <class F> __attribute__((always_inline)) inline void pool(int64_t at, int64_t group, F four) const {
        int64_t some = std::min(together, channels - group * together), first = at * channels + group * together;
        E best[together];
        uint8_t bytes[together];
        E* to = some == together ? out + first : best;
        uint8_t* place = some == together ? places + first : bytes;
        for (int64_t c = 0; c < together; c += lanes) {
            V o[4];
            four(c, o);
            if (places) {
                B which;
                T::store(to + c, largest<T>(o[0], o[1], o[2], o[3], which));
                Bytes<T>::store(place + c, which);
            } else {
                T::store(to + c, only_largest<T>(o[0], o[1], o[2], o[3]));
            }
        }
        if (some < together) std::copy_n(best, some, out + first);
        if (some < together && places) std::copy_n(bytes, some, places + first);
    }
};

template <class T, int TAPS> static void direct(const Layer<T>& layer, int64_t images, int32_t threads) {
    using E = typename T::Stored;
    constexpr int64_t together = Layer<T>::together;
    in_parts(images, threads, [&](int32_t, int64_t begin, int64_t end) {
        int64_t line = 2 * layer.columns * together;
        Aligned<E> padded(layer.padded_size()), two(2 * line);
        for (int64_t image = begin; image < end; ++image) {
            layer.pad(image, padded.data);
            for (int64_t group = 0; group < layer.groups; ++group)
                for (int64_t r = 0; r < layer.rows; ++r) {
                    const E* weight = layer.packed.data + group * 3 * layer.taps * together;
                    const E* bias = layer.biases.data + group * together;
                    for (int64_t half = 0; half < 2; ++half)
                        line_of_pixels<T, 3, TAPS>(2 * layer.columns, padded.data + (2 * r + half) * layer.row,
                                                   layer.row, layer.depth, layer.taps, weight, bias,
                                                   two.data + half * line);
                    for (int64_t i = 0; i < layer.columns; ++i) {
                        const E *p = two.data + 2 * i * together, *q = p + line;
                        layer.pool((image * layer.rows + r) * layer.columns + i, group, [=](int64_t c, auto* o) {
                            o[0] = T::load(p + c); o[1] = T::load(p + together + c);
                            o[2] = T::load(q + c); o[3] = T::load(q + together + c);
                        });
                    }
                }
        }
    });
}

// The transformed weights (16, group, depth, together): G g G', G = 1 0 0, 1/2 1/2 1/2, 1/2 -1/2 1/2, 0 0 1.
template <class T> static void transform_weights(const Layer<T>& layer, typename T::Stored* to) {
    using V = typename T::Vector;
    constexpr int64_t lanes = T::lanes, together = Layer<T>::together;
    auto times_g = [](V a, V b, V c, V* to, int64_t apart) {
        V half = (V)(a + c) * (typename T::Value)0.5, middle = b * (typename T::Value)0.5;
        to[0] = a; to[apart] = half + middle; to[2 * apart] = half - middle; to[3 * apart] = c;
    };
    for (int64_t group = 0; group < layer.groups; ++group)
        for (int64_t i = 0; i < layer.depth * together; i += lanes) {
            auto from = layer.packed.data + group * 3 * layer.taps * together + i;
            int64_t k = layer.depth * together;
            V half[12], whole[16];
            for (int y = 0; y < 3; ++y)
                times_g(T::load(from + 3 * y * k), T::load(from + (3 * y + 1) * k), T::load(from + (3 * y + 2) * k),
                        half + y, 3);  // half: (4 columns, 3 rows)
            for (int column = 0; column < 4; ++column)
                times_g(half[3 * column], half[3 * column + 1], half[3 * column + 2], whole + column, 4);
            for (int s = 0; s < 16; ++s) T::store(to + (s * layer.groups + group) * k + i, whole[s]);
        }
}

template <class T> static void winograd(const Layer<T>& layer, int64_t images, int32_t threads) {
    using E = typename T::Stored;
    using V = typename T::Vector;
    constexpr int64_t lanes = T::lanes, together = Layer<T>::together;
    int64_t depth = layer.depth, row = layer.row, slice = depth * together;
    Aligned<E> weights(16 * layer.groups * slice), zero(together);
    transform_weights(layer, weights.data);
    in_parts(images, threads, [&](int32_t, int64_t begin, int64_t end) {
        int64_t tiles = layer.rows * layer.columns, runs = (tiles + tiles_at_once - 1) / tiles_at_once;
        int64_t apart = tiles_at_once * depth + lanes;
        Aligned<E> padded(layer.padded_size() + lanes), inputs(16 * apart);
        Aligned<E> products(16 * tiles_at_once * together);
        for (int64_t image = begin; image < end; ++image) {
            layer.pad(image, padded.data);
            for (int64_t run = 0; run < runs; ++run) {
                int64_t first = tiles * run / runs, count = tiles * (run + 1) / runs - first;
                for (int64_t t = 0; t < count; ++t) {  // B' d B; a last vector that is too long is written over
                    int64_t r = (first + t) / layer.columns, i = (first + t) % layer.columns;
                    const E* corner = padded.data + 2 * r * row + 2 * i * depth;
                    for (int64_t c = 0; c < depth; c += lanes) {
                        V half[16];
                        for (int k = 0; k < 4; ++k) {
                            const E* p = corner + k * depth + c;
                            V a = T::load(p), b = T::load(p + row), d = T::load(p + 2 * row), e = T::load(p + 3 * row);
                            half[k] = a - d; half[4 + k] = b + d; half[8 + k] = d - b; half[12 + k] = b - e;
                        }
                        E* to = inputs.data + t * depth + c;
                        for (int y = 0; y < 4; ++y, to += 4 * apart) {
                            V a = half[4 * y], b = half[4 * y + 1], d = half[4 * y + 2], e = half[4 * y + 3];
                            T::store(to, a - d); T::store(to + apart, b + d);
                            T::store(to + 2 * apart, d - b); T::store(to + 3 * apart, b - e);
                        }
                    }
                }
                for (int64_t group = 0; group < layer.groups; ++group) {
                    for (int64_t s = 0; s < 16; ++s)
                        line_of_pixels<T, 1, 0>(count, inputs.data + s * apart, 0, depth, depth,
                                             weights.data + (s * layer.groups + group) * slice, zero.data,
                                             products.data + s * tiles_at_once * together);
                    const E* bias = layer.biases.data + group * together;
                    for (int64_t t = 0; t < count; ++t)  // A' m A
                        layer.pool(image * tiles + first + t, group, [&](int64_t c, V* o) {
                            const E* m = products.data + t * together + c;
                            auto at = [=](int s) { return T::load(m + s * tiles_at_once * together); };
                            V top[4], low[4], b = T::load(bias + c);
                            for (int k = 0; k < 4; ++k) {
                                V both = at(4 + k) + at(8 + k), difference = at(4 + k) - at(8 + k);
                                top[k] = at(k) + both; low[k] = difference - at(12 + k);
                            }
                            o[0] = top[0] + top[1] + top[2] + b; o[1] = top[1] - top[2] - top[3] + b;
                            o[2] = low[0] + low[1] + low[2] + b; o[3] = low[1] - low[2] - low[3] + b;
                        });
                }
            }
        }
    });
}

extern "C" void convolution(const void* x, const void* weight, const void* bias, void* out, uint8_t* place,
                int64_t images, int64_t depth, int64_t height, int64_t width, int64_t channels, int64_t of_out,
                int64_t of_in, int64_t of_y, int64_t of_x, int32_t tiled, int32_t threads) {
    Layer<KIND> layer(x, weight, bias, out, place, depth, height, width, channels, of_out, of_in, of_y, of_x);
    if (tiled) winograd<KIND>(layer, images, threads);
    else if (depth == 1) direct<KIND, 3>(layer, images, threads);
    else direct<KIND, 0>(layer, images, threads);
}
