#include <cstdint>
extern "C" void scaled_add(float a, const float* x, float* y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = a * x[i] + y[i];
}
extern "C" float total(const float* x, int64_t n) {
    float sum = 0.0f;
    for (int64_t i = 0; i < n; ++i) sum += x[i];
    return sum;
}
