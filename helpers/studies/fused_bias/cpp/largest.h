#pragma once
#include "common.h"

template <class T, class I> struct Pairs;
template <class T, size_t... I> struct Pairs<T, std::index_sequence<I...>> {
    using V = typename T::Vector;
    using B = typename T::Bits;
    static constexpr size_t n = sizeof...(I);
#if defined(__clang__)
    static V even(V a, V b) { return __builtin_shufflevector(a, b, (2 * I)...); }
    static V odd(V a, V b) { return __builtin_shufflevector(a, b, (2 * I + 1)...); }
    static V low(V a, V b) { return __builtin_shufflevector(a, b, (I / 2 + I % 2 * n)...); }
    static V high(V a, V b) { return __builtin_shufflevector(a, b, (n / 2 + I / 2 + I % 2 * n)...); }
#else
    static V even(V a, V b) { return __builtin_shuffle(a, b, B{(2 * I)...}); }
    static V odd(V a, V b) { return __builtin_shuffle(a, b, B{(2 * I + 1)...}); }
    static V low(V a, V b) { return __builtin_shuffle(a, b, B{(I / 2 + I % 2 * n)...}); }
    static V high(V a, V b) { return __builtin_shuffle(a, b, B{(n / 2 + I / 2 + I % 2 * n)...}); }
#endif
};
template <class T> using InPairs = Pairs<T, std::make_index_sequence<T::lanes>>;

template <class T> static typename T::Vector choose(typename T::Bits take, typename T::Vector a,
                                                    typename T::Vector b) {
    using B = typename T::Bits;
    return (typename T::Vector)(((B)a & take) | ((B)b & ~take));
}

// The largest of four, as torch chooses it: the first of equal ones, NaN before all. Place 4: nothing passes the ReLU.
template <class T> static inline typename T::Vector largest(typename T::Vector a, typename T::Vector b,
                                                            typename T::Vector c, typename T::Vector d,
                                                            typename T::Bits& place) {
    using V = typename T::Vector;
    using B = typename T::Bits;
    B take = (B)(b > a) | (B)(b != b);
    V best = choose<T>(take, b, a); place = take & 1;
    take = (B)(c > best) | (B)(c != c); best = choose<T>(take, c, best); place = (place & ~take) | (take & 2);
    take = (B)(d > best) | (B)(d != d); best = choose<T>(take, d, best); place = (place & ~take) | (take & 3);
    take = (B)(best <= V{}); place = (place & ~take) | (take & 4);
    return (V)((B)best & ~take);
}

template <class T> struct Bytes {
    typedef uint8_t Vector __attribute__((vector_size(T::lanes)));
    static typename T::Bits load(const uint8_t* p) {
        Vector v; std::memcpy(&v, p, sizeof v); return __builtin_convertvector(v, typename T::Bits);
    }
    static void store(uint8_t* p, typename T::Bits bits) {
        Vector v = __builtin_convertvector(bits, Vector); std::memcpy(p, &v, sizeof v);
    }
};
