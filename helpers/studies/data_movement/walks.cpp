#include <cstdint>
#include <cstring>

#define KEEP(x) __asm__ volatile("" : "+r"(x))

extern "C" {

uint32_t walk(const uint32_t* data, int64_t first, int64_t stride, int64_t count) {
    uint32_t a = 0, b = 0, c = 0, d = 0;
    const uint32_t* p = data + first;
    int64_t i = 0;
    for (; i + 4 <= count; i += 4, p += 4 * stride) {
        a += p[0];          KEEP(a);
        b += p[stride];     KEEP(b);
        c += p[2 * stride]; KEEP(c);
        d += p[3 * stride]; KEEP(d);
    }
    for (; i < count; ++i, p += stride) { a += *p; KEEP(a); }
    return a + b + c + d;
}

uint32_t read_chunks(const uint32_t* data, int64_t chunk, int64_t first, int64_t step, int64_t count) {
    uint32_t sum = 0;
    for (int64_t c = 0; c < count; ++c) {
        const uint32_t* p = data + (first + c * step) * chunk;
        for (int64_t i = 0; i < chunk; ++i) sum += p[i];
    }
    return sum;
}

uint32_t hop(const uint32_t* data, int64_t mask, uint64_t factor, uint64_t addend) {
    uint32_t sum = 0;
    uint64_t place = 0;
    for (int64_t i = 0; i <= mask; ++i) {
        place = (place * factor + addend) & (uint64_t)mask;
        sum += data[place];
        KEEP(sum);
    }
    return sum;
}

uint64_t load_four(const uint8_t* data, int64_t offset, int64_t step, int64_t rounds) {
    const uint8_t* p = data + offset;
    uint64_t a = 0, b = 0, c = 0, d = 0, word;
    for (int64_t r = 0; r < rounds; ++r) {
        std::memcpy(&word, p, 8);            a += word; KEEP(a);
        std::memcpy(&word, p + step, 8);     b += word; KEEP(b);
        std::memcpy(&word, p + 2 * step, 8); c += word; KEEP(c);
        std::memcpy(&word, p + 3 * step, 8); d += word; KEEP(d);
        __asm__ volatile("" : : : "memory");
    }
    return a + b + c + d;
}

}
