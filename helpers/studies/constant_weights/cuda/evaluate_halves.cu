$before

extern "C" __global__ void evaluate(const float* __restrict__ inputs, float* __restrict__ outputs,
                                    long long candidates$parameter)
{
$copy    const long long first = 2 * ((long long)blockIdx.x * blockDim.x + threadIdx.x);
    if (first >= candidates) return;
    const long long second = first + 1 < candidates ? first + 1 : first;

    __half2 h0[$inputs];
    #pragma unroll
    for (int i = 0; i < $inputs; ++i) h0[i] = __floats2half2_rn(inputs[$input], inputs[$second_input]);

$layers

    #pragma unroll
    for (int j = 0; j < $outputs; ++j) outputs[$output] = __low2float($last[j]);
    if (second == first) return;
    #pragma unroll
    for (int j = 0; j < $outputs; ++j) outputs[$second_output] = __high2float($last[j]);
}
