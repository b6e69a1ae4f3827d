#include <cstdint>

// Eight floats that need not be aligned: one vector of AVX, two of SSE or Neon.
typedef float Eight __attribute__((vector_size(32), aligned(4)));

// For each layer that `order` names: y = W x, with W of rows x columns, and columns a multiple of 64.
extern "C" float take_layers(const float* weights, const int32_t* order, int64_t uses, int64_t rows, int64_t columns,
                             const float* x, float* y) {
    for (int64_t use = 0; use < uses; ++use) {
        const float* layer = weights + order[use] * rows * columns;
        for (int64_t row = 0; row < rows; ++row) {
            const Eight* w = (const Eight*)(layer + row * columns);
            const Eight* v = (const Eight*)x;
            Eight a = {}, b = {}, c = {}, d = {};  // sums kept apart, so that no addition waits for the one before
            Eight e = {}, f = {}, g = {}, h = {};
            for (int64_t i = 0; i < columns / 8; i += 8) {
                a += w[i] * v[i];
                b += w[i + 1] * v[i + 1];
                c += w[i + 2] * v[i + 2];
                d += w[i + 3] * v[i + 3];
                e += w[i + 4] * v[i + 4];
                f += w[i + 5] * v[i + 5];
                g += w[i + 6] * v[i + 6];
                h += w[i + 7] * v[i + 7];
            }
            a += b + c + d + e + f + g + h;
            y[row] = a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7];
        }
    }
    return y[0];
}
