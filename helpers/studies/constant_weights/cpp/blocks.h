#pragma once

template <int WIDTH>
INLINE void evaluate_block(const float* inputs, float* outputs, const float* parameters) {
    Lanes x[INPUTS][WIDTH], y[OUTPUTS][WIDTH];
    to_lanes<INPUTS, WIDTH>(inputs, x);
    evaluate_lanes<WIDTH>(x, y, parameters);
    from_lanes<OUTPUTS, WIDTH>(y, outputs);
}

// Blocks of GROUP registers of candidates, then of one; what is left lies in a block filled up with zeros.
extern "C" void evaluate(const float* inputs, float* outputs, int64_t candidates, const void* context) {
    const float* parameters = static_cast<const float*>(context);
    for (; candidates >= GROUP * LANES; candidates -= GROUP * LANES) {
        evaluate_block<GROUP>(inputs, outputs, parameters);
        inputs += GROUP * LANES * INPUTS;
        outputs += GROUP * LANES * OUTPUTS;
    }
    for (; candidates >= LANES; candidates -= LANES) {
        evaluate_block<1>(inputs, outputs, parameters);
        inputs += LANES * INPUTS;
        outputs += LANES * OUTPUTS;
    }
    if (!STRAIGHT_LINE && candidates <= LANES / 2) {  // a register of candidates would stay half empty
        for (; candidates > 0; --candidates, inputs += INPUTS, outputs += OUTPUTS)
            evaluate_one(inputs, outputs, parameters);
    }
    if (candidates > 0) {
        float filled[LANES * INPUTS] = {}, results[LANES * OUTPUTS];
        memcpy(filled, inputs, candidates * INPUTS * sizeof(float));
        evaluate_block<1>(filled, results, parameters);
        memcpy(outputs, results, candidates * OUTPUTS * sizeof(float));
    }
}
