extern "C" __global__ void chase(const unsigned long long* next, unsigned long long* state, unsigned long long steps) {
    unsigned long long index = state[0];
    for (unsigned long long step = 0; step < steps; ++step) index = next[index];
    state[0] = index;
}
