// A dense network of any sizes.
#include <cmath>
#include <cstdint>
#include <vector>

// Nothing is known when this is compiled: the sizes, activations and weights of any network arrive with the call.
struct Network {
    int64_t layers, widest;
    const int64_t* widths;       // the inputs, then every layer's outputs
    const int64_t* activations;  // 0 identity, 1 relu, 2 tanh, 3 sigmoid, 4 softmax
    const float* parameters;     // of each layer its biases, then its weights, a row an input
};

static void activate(float* y, int64_t count, int64_t activation) {
    if (activation == 1) for (int64_t o = 0; o < count; ++o) y[o] = y[o] < 0 ? 0 : y[o];
    if (activation == 2) for (int64_t o = 0; o < count; ++o) y[o] = std::tanh(y[o]);
    if (activation == 3) for (int64_t o = 0; o < count; ++o) y[o] = 1 / (1 + std::exp(-y[o]));
    if (activation == 4) {
        float largest = y[0], sum = 0;
        for (int64_t o = 1; o < count; ++o) largest = y[o] > largest ? y[o] : largest;
        for (int64_t o = 0; o < count; ++o) sum += y[o] = std::exp(y[o] - largest);
        for (int64_t o = 0; o < count; ++o) y[o] /= sum;
    }
}

extern "C" void evaluate(const float* inputs, float* outputs, int64_t candidates, const void* context) {
    const Network& network = *static_cast<const Network*>(context);
    std::vector<float> buffer(2 * network.widest);
    for (; candidates > 0; --candidates) {
        const float *parameters = network.parameters, *x = inputs;
        for (int64_t layer = 0; layer < network.layers; ++layer) {
            const int64_t in = network.widths[layer], out = network.widths[layer + 1];
            float* __restrict__ y =
                layer + 1 == network.layers ? outputs : buffer.data() + layer % 2 * network.widest;
            for (int64_t o = 0; o < out; ++o) y[o] = parameters[o];
            parameters += out;
            for (int64_t i = 0; i < in; ++i, parameters += out) {
                const float input = x[i];
                for (int64_t o = 0; o < out; ++o) y[o] += input * parameters[o];
            }
            activate(y, out, network.activations[layer]);
            x = y;
        }
        inputs += network.widths[0];
        outputs += network.widths[network.layers];
    }
}
