__device__ inline __half2 both(unsigned short bits)  // one weight's bits, for both candidates
{
    return __half2half2(__ushort_as_half(bits));
}

__device__ inline __half2 relu(__half2 x) { return __hmax2_nan(x, both(0)); }  // NaN stays NaN

__device__ inline __half2 hyperbolic_tangent(__half2 x)  // in float, rounded at the end
{
    return __floats2half2_rn(hyperbolic_tangent(__low2float(x)), hyperbolic_tangent(__high2float(x)));
}

__device__ inline __half2 sigmoid(__half2 x)  // in float, rounded at the end
{
    return __floats2half2_rn(sigmoid(__low2float(x)), sigmoid(__high2float(x)));
}

template <int width> __device__ inline void softmax(__half2 (&x)[width])  // in float, rounded at the end
{
    float first[width], second[width];
    #pragma unroll
    for (int j = 0; j < width; ++j) { first[j] = __low2float(x[j]); second[j] = __high2float(x[j]); }
    softmax(first);
    softmax(second);
    #pragma unroll
    for (int j = 0; j < width; ++j) x[j] = __floats2half2_rn(first[j], second[j]);
}
