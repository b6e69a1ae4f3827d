"""The matrix products as programs: CUDA C++ for a GPU, C++ for this processor. Lesson 02 shows their text.

``c`` = ``a`` @ ``b`` in float32, of any sizes: a is m x k, b k x n, c m x n, each stored row by row.
"""

from __future__ import annotations

CUDA_TILES = (8, 16, 32)  # a block has tile x tile threads, of which a GPU takes at most 1,024
CUDA_DECLARATION = "void {name}(const float* a, const float* b, float* c, int m, int n, int k)"
CPU_DECLARATION = "void {name}(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k)"

CUDA_NAIVE = """\
// One thread an element of c. Each step of its sum reads both factors from global memory.
extern "C" __global__ void naive_product(const float* a, const float* b, float* c, int m, int n, int k) {
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= m || column >= n) return;
    float sum = 0;
    for (int p = 0; p < k; ++p) sum += a[row * k + p] * b[p * n + column];
    c[row * n + column] = sum;
}
"""

CUDA_TILED = """\
// One thread an element of c. The block brings a tile of a and a tile of b to shared memory, one element of each a
// thread; then every thread takes TILE steps of its sum from there. Outside a and b the tiles hold zeros.
constexpr int TILE = {tile};
extern "C" __global__ void tiled_product(const float* a, const float* b, float* c, int m, int n, int k) {{
    __shared__ float a_tile[TILE][TILE], b_tile[TILE][TILE];
    const int y = threadIdx.y, x = threadIdx.x;
    const int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0;
    for (int start = 0; start < k; start += TILE) {{
        a_tile[y][x] = row < m && start + x < k ? a[row * k + start + x] : 0;
        b_tile[y][x] = start + y < k && column < n ? b[(start + y) * n + column] : 0;
        __syncthreads();
        #pragma unroll
        for (int p = 0; p < TILE; ++p) sum += a_tile[y][p] * b_tile[p][x];
        __syncthreads();
    }}
    if (row < m && column < n) c[row * n + column] = sum;
}}
"""

CPU_NAIVE = """\
// The order i, j, k: an element of c after the other. The inner loop walks down a column of b, n numbers a step.
extern "C" void naive_product(const float* a, const float* b, float* c, int64_t m, int64_t n, int64_t k) {
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
            float sum = 0;
            for (int64_t p = 0; p < k; ++p) sum += a[i * k + p] * b[p * n + j];
            c[i * n + j] = sum;
        }
}
"""

CPU_INTERCHANGED = """\
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
"""

CPU_TILED = """\
// The order i, k, j within blocks of TILE x TILE: a block of b is used TILE times while it is in a cache.
constexpr int64_t TILE = {tile};
static int64_t end_of(int64_t start, int64_t size) {{ return start + TILE < size ? start + TILE : size; }}
extern "C" void tiled_product(const float* a, const float* b, float* __restrict__ c,
                              int64_t m, int64_t n, int64_t k) {{
    for (int64_t i = 0; i < m * n; ++i) c[i] = 0;
    for (int64_t i0 = 0; i0 < m; i0 += TILE)
        for (int64_t j0 = 0; j0 < n; j0 += TILE)
            for (int64_t p0 = 0; p0 < k; p0 += TILE)
                for (int64_t i = i0; i < end_of(i0, m); ++i)
                    for (int64_t p = p0; p < end_of(p0, k); ++p) {{
                        const float factor = a[i * k + p];
                        const int64_t j_end = end_of(j0, n);
                        for (int64_t j = j0; j < j_end; ++j) c[i * n + j] += factor * b[p * n + j];
                    }}
}}
"""

CPU_IN_REGISTERS = """\
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
"""


def cuda_source(*, tile: int) -> str:
    """Return the CUDA C++ program with ``naive_product`` and ``tiled_product`` (blocks of ``tile`` x ``tile``).

    Raises ValueError for a tile that is not one of :data:`CUDA_TILES`. For the library itself.
    """
    if tile not in CUDA_TILES:
        raise ValueError(
            f"a block of tile x tile threads has a tile of {', '.join(map(str, CUDA_TILES))}; got {tile!r}"
        )
    return f"{CUDA_NAIVE}\n{CUDA_TILED.format(tile=tile)}"


def cpu_source(*, tile: int) -> str:
    """Return the C++ program: ``naive_product``, ``interchanged_product``, ``tiled_product``, ``registers_product``.

    Raises ValueError for a tile that is no whole number from 1 to 4,096. Lesson 02.
    """
    if isinstance(tile, bool) or not isinstance(tile, int) or not 1 <= tile <= 4096:
        raise ValueError(f"tile is a whole number from 1 to 4,096; got {tile!r}")
    parts = (
        "#include <cstdint>\n#include <cstring>\n",
        CPU_NAIVE,
        CPU_INTERCHANGED,
        CPU_TILED.format(tile=tile),
        CPU_IN_REGISTERS,
    )
    return "\n".join(parts)
