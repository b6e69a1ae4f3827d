$before

extern "C" __global__ void evaluate(const float* __restrict__ inputs, float* __restrict__ outputs,
                                    long long candidates$parameter)
{
$copy    const long long candidate = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (candidate >= candidates) return;

    float h0[$inputs];
    #pragma unroll
    for (int i = 0; i < $inputs; ++i) h0[i] = inputs[$input];

$layers

    #pragma unroll
    for (int j = 0; j < $outputs; ++j) outputs[$output] = $last[j];
}
