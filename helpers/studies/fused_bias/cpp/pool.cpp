// Bias, ReLU and 2 x 2 max pooling in one pass. KIND is F32 or F64.
// In channels-last a vector is channels of one pixel; in NCHW it is neighbouring pixels, whose even and odd columns are
// parted. A row's last vector may reach into the next row: what it reads there is thrown away, what it writes there is
// written again when its turn comes; only at the end of a thread's part are single elements handled.
#include "largest.h"

// A channels-last line in vectors of channels, the last of which may overlap: part(first channel, lanes that are new).
template <class T, class F> static inline void over_channels(int64_t channels, F part) {
    int64_t c = 0;
    for (; c + T::lanes <= channels; c += T::lanes) part(c, T::lanes);
    if (c < channels) part(channels - T::lanes, channels - c);
}

template <class T> static void bias_relu_pool(const void* x_, const void* bias_, void* out_, uint8_t* places,
    int64_t images, int64_t channels, int64_t height, int64_t width, int32_t last, int32_t threads) {
    using E = typename T::Stored;
    using V = typename T::Vector;
    using B = typename T::Bits;
    constexpr int64_t lanes = T::lanes;
    auto x = (const E*)x_, bias = (const E*)bias_;
    auto out = (E*)out_;
    const E* x_end = x + images * channels * height * width;
    int64_t rows = height / 2, columns = width / 2, depth = last ? channels : 1;
    in_parts(images * rows * (last ? 1 : channels), threads, [=](int32_t, int64_t begin, int64_t end) {
        std::vector<E> four(4 * lanes);
        uint8_t bytes[lanes];
        const E* out_end = out + end * columns * depth;
        for (int64_t line = begin; line < end; ++line) {
            int64_t plane = line / rows;  // an image in channels-last, an image's channel in NCHW
            const E* p = x + (plane * height + line % rows * 2) * width * depth;
            const E* q = p + width * depth;
            E* to = out + line * columns * depth;
            uint8_t* place = places + line * columns * depth;
            B at;
            if (last && depth >= lanes) {
                for (int64_t i = 0; i < columns; ++i, p += 2 * depth, q += 2 * depth, to += depth, place += depth)
                    over_channels<T>(depth, [&](int64_t c, int64_t) {
                        V b = T::load(bias + c);
                        V best = largest<T>(T::load(p + c) + b, T::load(p + depth + c) + b, T::load(q + c) + b,
                                            T::load(q + depth + c) + b, at);
                        T::store(to + c, best);
                        Bytes<T>::store(place + c, at);
                    });
                continue;
            }
            V b = V{} + bias[last ? 0 : plane % channels];
            for (int64_t i = 0; !last && i < columns; i += lanes) {
                const E *pi = p + 2 * i, *qi = q + 2 * i;
                int64_t some = std::min(lanes, columns - i);
                bool inside = qi + 2 * lanes <= x_end && to + i + lanes <= out_end;
                if (!inside) {
                    std::copy_n(pi, 2 * some, four.data());
                    std::copy_n(qi, 2 * some, four.data() + 2 * lanes);
                    pi = four.data(); qi = pi + 2 * lanes;
                }
                V p0 = T::load(pi) + b, p1 = T::load(pi + lanes) + b;
                V q0 = T::load(qi) + b, q1 = T::load(qi + lanes) + b;
                V best = largest<T>(InPairs<T>::even(p0, p1), InPairs<T>::odd(p0, p1), InPairs<T>::even(q0, q1),
                                    InPairs<T>::odd(q0, q1), at);
                T::store(inside ? to + i : four.data(), best);
                Bytes<T>::store(inside ? place + i : bytes, at);
                if (!inside) { std::copy_n(four.data(), some, to + i); std::copy_n(bytes, some, place + i); }
            }
            for (int64_t j = 0; last && j < columns * depth; ++j) {  // fewer channels than a vector has lanes
                int64_t c = j % depth, left = (j / depth * 2) * depth + c;
                V best = largest<T>(V{} + (p[left] + bias[c]), V{} + (p[left + depth] + bias[c]),
                                    V{} + (q[left] + bias[c]), V{} + (q[left + depth] + bias[c]), at);
                to[j] = best[0]; place[j] = uint8_t(at[0]);
            }
        }
    });
}

template <class T> static void bias_relu_pool_backward(const void* grad_, const uint8_t* places, void* grad_x_,
    void* total_, int64_t images, int64_t channels, int64_t height, int64_t width, int32_t last, int32_t threads) {
    using E = typename T::Stored;
    using V = typename T::Vector;
    using B = typename T::Bits;
    constexpr int64_t lanes = T::lanes;
    auto grad = (const E*)grad_;
    auto grad_x = (E*)grad_x_;
    int64_t rows = height / 2, columns = width / 2, planes = images * (last ? 1 : channels);
    int64_t depth = last ? channels : 1, outputs = planes * rows * columns * depth;
    std::vector<double> sums(threads * channels, 0.0);
    double* all = sums.data();
    in_parts(planes, threads, [=](int32_t part, int64_t begin, int64_t end) {
        std::vector<E> buffer(4 * lanes), line(depth + lanes);
        uint8_t bytes[lanes] = {};
        E* end_of_part = grad_x + end * height * width * depth;
        B which;
        for (int64_t k = 0; k < lanes; ++k) which[k] = k;
        for (int64_t row = begin * rows; row < end * rows; ++row) {
            int64_t plane = row / rows;
            E* p = grad_x + (plane * height + row % rows * 2) * width * depth;
            E* q = p + width * depth;
            const E* from = grad + row * columns * depth;
            const uint8_t* place = places + row * columns * depth;
            double* sum = all + part * channels + (last ? 0 : plane % channels);
            V added{};
            if (last) std::fill(line.begin(), line.end(), E(0));
            auto to_double = [&] {  // after STEPS additions at most, as in the other sums
                for (int64_t k = 0; k < lanes && !last; ++k) *sum += added[k];
                for (int64_t c = 0; c < depth && last; ++c) { sum[c] += line[c]; line[c] = 0; }
                added = V{};
            };
            for (int64_t i = 0; i < columns && last && depth >= lanes; ++i) {
                over_channels<T>(depth, [&](int64_t c, int64_t fresh) {
                    V g = T::load(from + i * depth + c);
                    B at = Bytes<T>::load(place + i * depth + c);
                    int64_t left = 2 * i * depth + c, right = left + depth;
                    T::store(p + left, (V)((B)g & (B)(at == 0))); T::store(p + right, (V)((B)g & (B)(at == 1)));
                    T::store(q + left, (V)((B)g & (B)(at == 2))); T::store(q + right, (V)((B)g & (B)(at == 3)));
                    B counts = (B)(at < 4) & (B)(which >= int32_t(lanes - fresh));
                    T::store(line.data() + c, T::load(line.data() + c) + (V)((B)g & counts));
                });
                if (i % STEPS == STEPS - 1) to_double();
            }
            for (int64_t j = 0; j < columns * depth && last && depth < lanes; ++j) {
                int64_t c = j % depth, left = j / depth * 2 * depth + c;
                p[left] = place[j] == 0 ? from[j] : E(0); p[left + depth] = place[j] == 1 ? from[j] : E(0);
                q[left] = place[j] == 2 ? from[j] : E(0); q[left + depth] = place[j] == 3 ? from[j] : E(0);
                line[c] += place[j] < 4 ? from[j] : E(0);
                if (c == depth - 1 && j / depth % STEPS == STEPS - 1) to_double();
            }
            for (int64_t i = 0; !last && i < columns; i += lanes) {
                const E* source = from + i;
                const uint8_t* byte = place + i;
                E *pi = p + 2 * i, *qi = q + 2 * i;
                int64_t some = std::min(lanes, columns - i);
                // Beyond a row's first vector, what is too much would fall on what is already written.
                bool whole = some == lanes || i == 0;
                bool inside = whole && qi + 2 * lanes <= end_of_part && from + i + lanes <= grad + outputs;
                if (!inside) {
                    std::copy_n(source, some, buffer.data()); std::copy_n(byte, some, bytes);
                    source = buffer.data(); byte = bytes;
                }
                V g = T::load(source);
                B at = Bytes<T>::load(byte);
                V zero = (V)((B)g & (B)(at == 0)), one = (V)((B)g & (B)(at == 1));
                V two = (V)((B)g & (B)(at == 2)), three = (V)((B)g & (B)(at == 3));
                E *pt = inside ? pi : buffer.data(), *qt = inside ? qi : buffer.data() + 2 * lanes;
                T::store(pt, InPairs<T>::low(zero, one)); T::store(pt + lanes, InPairs<T>::high(zero, one));
                T::store(qt, InPairs<T>::low(two, three)); T::store(qt + lanes, InPairs<T>::high(two, three));
                if (!inside) { std::copy_n(pt, 2 * some, pi); std::copy_n(qt, 2 * some, qi); }
                added += (V)((B)g & (B)(at < 4) & (B)(which < int32_t(some)));
                if (i / lanes % STEPS == STEPS - 1) to_double();
            }
            to_double();
            if (width % 2) {
                std::fill_n(p + (width - 1) * depth, depth, E(0));
                std::fill_n(q + (width - 1) * depth, depth, E(0));
            }
            if (height % 2 && row % rows == rows - 1) std::fill_n(q + width * depth, width * depth, E(0));
        }
    });
    std::vector<double> total(channels, 0.0);
    for (int64_t j = 0; j < threads * channels; ++j) total[j % channels] += sums[j];
    round_to<T>(total_, total);
}

extern "C" void bias_relu_pool(const void* x, const void* bias, void* out, uint8_t* place, int64_t images,
                int64_t channels, int64_t height, int64_t width, int32_t last, int32_t threads) {
    bias_relu_pool<KIND>(x, bias, out, place, images, channels, height, width, last, threads);
}

extern "C" void bias_relu_pool_backward(const void* grad, const uint8_t* place, void* grad_x, void* total,
                int64_t images, int64_t channels, int64_t height, int64_t width, int32_t last, int32_t threads) {
    bias_relu_pool_backward<KIND>(grad, place, grad_x, total, images, channels, height, width, last, threads);
}
