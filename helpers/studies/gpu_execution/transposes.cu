// output = the transpose of input, in float32: both are n x n, stored row by row. A block serves tiles of 32 x 32 values.

// One thread per value, in blocks of 32 x 32. A warp loads from a row and stores into a column.
extern "C" __global__ void one_line(const float* __restrict__ input, float* __restrict__ output, int n) {
    const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    if (x < n && y < n) output[x * n + y] = input[y * n + x];
}

// The thread's part of a transpose through shared memory: the block loads the rows of a tile, and after the barrier it
// stores the tile's columns as rows of the output. A block has 32 x 32 / VALUES threads, and a row of its tile WORDS
// words.
template <int WORDS, int VALUES>
__device__ void through_tile(const float* __restrict__ input, float* __restrict__ output, int n) {
    __shared__ float tile[32][WORDS];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    #pragma unroll
    for (int j = 0; j < 32; j += 32 / VALUES)
        if (x < n && y + j < n) tile[threadIdx.y + j][threadIdx.x] = input[(y + j) * n + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x;
    y = blockIdx.x * 32 + threadIdx.y;
    #pragma unroll
    for (int j = 0; j < 32; j += 32 / VALUES)
        if (x < n && y + j < n) output[(y + j) * n + x] = tile[threadIdx.x][threadIdx.y + j];
}

// One thread per value, in blocks of 32 x 32. A column of the tile is in one bank.
extern "C" __global__ void tiled(const float* __restrict__ input, float* __restrict__ output, int n) {
    through_tile<32, 1>(input, output, n);
}

// As above, with one unused word per row of the tile. A column of the tile is in 32 banks.
extern "C" __global__ void padded(const float* __restrict__ input, float* __restrict__ output, int n) {
    through_tile<33, 1>(input, output, n);
}

// Four values per thread, in blocks of 32 x 8, so that a thread has four loads in flight.
extern "C" __global__ void four_values(const float* __restrict__ input, float* __restrict__ output, int n) {
    through_tile<33, 4>(input, output, n);
}
