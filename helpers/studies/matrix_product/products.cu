// c = a @ b in float32: a is m x k, b k x n, c m x n, each stored row by row. A block has TILE x TILE threads.

// One thread an element of c. Each step of its sum reads both factors from global memory.
extern "C" __global__ void naive_product(const float* a, const float* b, float* c, int m, int n, int k) {
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= m || column >= n) return;
    float sum = 0;
    for (int p = 0; p < k; ++p) sum += a[row * k + p] * b[p * n + column];
    c[row * n + column] = sum;
}

// One thread an element of c. The block brings a tile of a and a tile of b to shared memory, one element of each a
// thread; then every thread takes TILE steps of its sum from there. Outside a and b the tiles hold zeros.
extern "C" __global__ void tiled_product(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float a_tile[TILE][TILE], b_tile[TILE][TILE];
    const int y = threadIdx.y, x = threadIdx.x;
    const int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0;
    for (int start = 0; start < k; start += TILE) {
        a_tile[y][x] = row < m && start + x < k ? a[row * k + start + x] : 0;
        b_tile[y][x] = start + y < k && column < n ? b[(start + y) * n + column] : 0;
        __syncthreads();
        #pragma unroll
        for (int p = 0; p < TILE; ++p) sum += a_tile[y][p] * b_tile[p][x];
        __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = sum;
}
