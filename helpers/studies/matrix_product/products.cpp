// c = a @ b in float32: a is m x k, b k x n, c m x n, each stored row by row. TILE is the side of a block.
#include <cstdint>
#include <cstring>

// The order i, j, k: an element of c after the other. The inner loop walks down a column of b, n numbers a step.
extern "C" void naive_product(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k) {
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
            float sum = 0;
            for (int64_t p = 0; p < k; ++p) sum += a[i * k + p] * b[p * n + j];
            c[i * n + j] = sum;
        }
}

// The order i, k, j: the inner loop walks along a row of b and a row of c, and can take several columns at once.
extern "C" void interchanged_product(const float* a, const float* b, float* __restrict__ c,
                                     int64_t m, int64_t n, int64_t k) {
    for (int64_t i = 0; i < m * n; ++i) c[i] = 0;
    for (int64_t i = 0; i < m; ++i)
        for (int64_t p = 0; p < k; ++p) {
            const float factor = a[i * k + p];
            for (int64_t j = 0; j < n; ++j) c[i * n + j] += factor * b[p * n + j];
        }
}

// The order i, k, j within blocks of TILE x TILE: a block of b is used TILE times while it is in a cache.
static int64_t end_of(int64_t start, int64_t size) { return start + TILE < size ? start + TILE : size; }
extern "C" void tiled_product(const float* a, const float* b, float* __restrict__ c,
                              int64_t m, int64_t n, int64_t k) {
    for (int64_t i = 0; i < m * n; ++i) c[i] = 0;
    for (int64_t i0 = 0; i0 < m; i0 += TILE)
        for (int64_t j0 = 0; j0 < n; j0 += TILE)
            for (int64_t p0 = 0; p0 < k; p0 += TILE)
                for (int64_t i = i0; i < end_of(i0, m); ++i)
                    for (int64_t p = p0; p < end_of(p0, k); ++p) {
                        const float factor = a[i * k + p];
                        const int64_t j_end = end_of(j0, n);
                        for (int64_t j = j0; j < j_end; ++j) c[i * n + j] += factor * b[p * n + j];
                    }
}

// A block of ROWS x COLUMNS of c stays in registers for all k steps: each step reads ROWS numbers of a and COLUMNS of
// b, and makes ROWS x COLUMNS multiply-adds of them. Vector is WIDTH numbers, as g++ and clang++ write it.
constexpr int64_t ROWS = 4, WIDTH = 8, COLUMNS = 2 * WIDTH;
typedef float Vector __attribute__((vector_size(WIDTH * sizeof(float))));
static void whole_block(const float* a, const float* b, float* c, int64_t n, int64_t k) {
    Vector left[ROWS] = {}, right[ROWS] = {};
    for (int64_t p = 0; p < k; ++p) {
        Vector b_left, b_right;
        memcpy(&b_left, b + p * n, sizeof b_left);
        memcpy(&b_right, b + p * n + WIDTH, sizeof b_right);
        #pragma GCC unroll 4
        for (int64_t i = 0; i < ROWS; ++i) {
            left[i] += a[i * k + p] * b_left;
            right[i] += a[i * k + p] * b_right;
        }
    }
    #pragma GCC unroll 4
    for (int64_t i = 0; i < ROWS; ++i) {
        memcpy(c + i * n, &left[i], sizeof left[i]);
        memcpy(c + i * n + WIDTH, &right[i], sizeof right[i]);
    }
}
extern "C" void registers_product(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k) {
    const int64_t whole_rows = m - m % ROWS, whole_columns = n - n % COLUMNS;
    for (int64_t j = 0; j < whole_columns; j += COLUMNS)
        for (int64_t i = 0; i < whole_rows; i += ROWS) whole_block(a + i * k, b + j, c + i * n + j, n, k);
    for (int64_t i = 0; i < m; ++i)  // what is left at the right and at the bottom
        for (int64_t j = i < whole_rows ? whole_columns : 0; j < n; ++j) {
            float sum = 0;
            for (int64_t p = 0; p < k; ++p) sum += a[i * k + p] * b[p * n + j];
            c[i * n + j] = sum;
        }
}
