    __shared__ __align__(16) Weights copied;
    for (int k = threadIdx.x; k < (int)(sizeof(Weights) / sizeof($kind)); k += blockDim.x)
        (($kind*)&copied)[k] = ((const $kind*)weights)[k];
    __syncthreads();
