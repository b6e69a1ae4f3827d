$weights

extern "C" __global__ void layer(const float* inputs, float* outputs) {
    const float* x = inputs + 4 * threadIdx.x;
    float h[4] = {0, 0, 0, 0};
    #pragma unroll
    for (int i = 0; i < 4; ++i)
        #pragma unroll
        for (int j = 0; j < 4; ++j) h[j] = fmaf(x[i], weights[i][j], h[j]);
    for (int j = 0; j < 4; ++j) outputs[4 * threadIdx.x + j] = h[j];
}
