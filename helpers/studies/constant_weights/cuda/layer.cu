    // layer $number: $inputs -> $outputs, $activation
    $type h$number[$outputs];
    #pragma unroll
    for (int j = 0; j < $outputs; ++j) h$number[j] = $bias;
    #pragma unroll
    for (int j = 0; j < $outputs; ++j)
        #pragma unroll
        for (int i = 0; i < $inputs; ++i)
            $step
