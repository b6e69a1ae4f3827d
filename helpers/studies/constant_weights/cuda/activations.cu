__device__ inline float relu(float x)  // NaN stays NaN, as in torch; fmaxf would make it 0
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("max.NaN.f32 %0, %0, 0f00000000;" : "+f"(x));  // one instruction, which sm_80 and later have
    return x;
#else
    return x < 0.0f ? 0.0f : x;
#endif
}

__device__ inline float hyperbolic_tangent(float x) { return tanhf(x); }

__device__ inline float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }

template <int width> __device__ inline void softmax(float (&x)[width])
{
    float largest = x[0], sum = 0.0f;
    #pragma unroll
    for (int j = 1; j < width; ++j) largest = x[j] > largest ? x[j] : largest;
    #pragma unroll
    for (int j = 0; j < width; ++j) { x[j] = expf(x[j] - largest); sum += x[j]; }
    #pragma unroll
    for (int j = 0; j < width; ++j) x[j] = __fdividef(x[j], sum);
}
