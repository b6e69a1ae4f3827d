// One training step of all replicas of a fit, as helpers.studies.replicas trains them: forward, both losses, backward,
// and the update by Adam or SGD. REAL is float or double.
//
// x-points lie on the lanes of a Vector, so points is a multiple of 2 LANES here, padded with zeros. A replica's 763
// weights and its activations fit the first cache; a table's tile is loaded once and meets all replicas while it is there.
#include <cmath>
#include <cstdint>
#include <cstring>

constexpr int64_t IN = 2, H1 = 25, H2 = 20, OUT = 8, FLAVOURS = 14, AT_ONCE = 4;
constexpr int64_t W1 = 0, B1 = W1 + H1 * IN, W2 = B1 + H1, B2 = W2 + H2 * H1, W3 = B2 + H2, B3 = W3 + OUT * H2;
constexpr int64_t WEIGHTS = B3 + OUT, HIDDEN = H1 + H2;
#ifdef __AVX512F__
constexpr int64_t VECTOR_BYTES = 64;
#else
constexpr int64_t VECTOR_BYTES = 32;
#endif
constexpr int64_t LANES = VECTOR_BYTES / sizeof(REAL);
typedef REAL Vector __attribute__((vector_size(VECTOR_BYTES)));

static inline Vector load(const REAL* from) { Vector v; memcpy(&v, from, sizeof v); return v; }
static inline void store(REAL* to, Vector v) { memcpy(to, &v, sizeof v); }
static inline Vector all(REAL value) { return value - Vector{}; }
static inline REAL sum(Vector v) {
    REAL total = 0;
    for (int64_t lane = 0; lane < LANES; ++lane) total += v[lane];
    return total;
}

// tanh: the branches of a lane are both computed. e^(2x) - 1 = 2^n (e^r - 1) + (2^n - 1), with 2x = n ln 2 + r.
template <class Real> struct Bits;
template <> struct Bits<float> {
    typedef int32_t Whole;
    static constexpr int MANTISSA = 23, BIAS = 127, TERMS = 8;
    static constexpr float MAGIC = 12582912.0f, LN2_HIGH = 0.693145751953125f, LN2_LOW = 1.42860677e-6f, LARGEST = 20.0f;
};
template <> struct Bits<double> {
    typedef int64_t Whole;
    static constexpr int MANTISSA = 52, BIAS = 1023, TERMS = 14;
    static constexpr double MAGIC = 6755399441055744.0, LN2_HIGH = 0.693147180369123816490,
                            LN2_LOW = 1.90821492927058770002e-10, LARGEST = 40.0;
};
typedef Bits<REAL>::Whole Wholes __attribute__((vector_size(VECTOR_BYTES)));

static inline Vector tanh_of(Vector x) {
    typedef Bits<REAL> B;
    Vector twice = 2 * x;
    twice = twice > all(B::LARGEST) ? all(B::LARGEST) : twice;
    twice = twice < all(-B::LARGEST) ? all(-B::LARGEST) : twice;
    const Vector shifted = twice * REAL(1.44269504088896340736) + B::MAGIC;
    const Vector n = shifted - B::MAGIC;
    const Vector r = (twice - n * B::LN2_HIGH) - n * B::LN2_LOW;
    Vector series = all(1);  // (e^r - 1) / r = 1 + r/2 (1 + r/3 (1 + ...))
    #pragma GCC unroll 16
    for (int term = B::TERMS; term > 1; --term) series = 1 + series * r * (REAL(1) / REAL(term));
    Wholes exponent;
    memcpy(&exponent, &shifted, sizeof exponent);
    Vector magic = all(B::MAGIC);
    Wholes zero;
    memcpy(&zero, &magic, sizeof zero);
    exponent = ((exponent - zero) + B::BIAS) << B::MANTISSA;
    Vector scale;
    memcpy(&scale, &exponent, sizeof scale);
    const Vector less_one = scale * (series * r) + (scale - 1);
    return less_one / (less_one + 2);
}

struct Fit {  // what all replicas share; numbers of tables in the order in which they are read
    int64_t replicas, points, used, singles, pairs, data, conditions;  // points are `used` ones and zeros
    const REAL *inputs, *shapes, *quadrature, *bump, *rotation;  // (2, x) (8, x) (x) (8, x) (8, 14)
    const int64_t *single_sizes, *single_channels;               // (n, F) a set; then its F channels
    const REAL* single_tables;                                   // (n, F, x) a set; data first, then conditions
    const int64_t *pair_sizes, *pair_channels;                   // (n, F) a set; then its F pairs
    const REAL *pair_tables, *pair_turned;                       // (n, F, y, x) and (n, F, x, y) a set
    REAL weight, alpha;                                          // of a violated condition, and of a kept one
};

// Each replica's net, its 14 flavours (14, x), and what backward needs: the activations (45, x).
static void flavours_of(const Fit& fit, const REAL* w, REAL* hidden, REAL* flavours) {
    const int64_t points = fit.points;
    for (int64_t x = 0; x < points; x += LANES) {
        const Vector a = load(fit.inputs + x), b = load(fit.inputs + points + x);
        for (int64_t j = 0; j < H1; ++j)
            store(hidden + j * points + x, tanh_of(w[B1 + j] + w[W1 + 2 * j] * a + w[W1 + 2 * j + 1] * b));
        for (int64_t j = 0; j < H2; ++j) {
            Vector total = all(w[B2 + j]);
            for (int64_t k = 0; k < H1; ++k) total += w[W2 + j * H1 + k] * load(hidden + k * points + x);
            store(hidden + (H1 + j) * points + x, tanh_of(total));
        }
    }
    REAL shaped[OUT * 256];
    Vector momentum = {};
    for (int64_t x = 0; x < points; x += LANES)
        for (int64_t j = 0; j < OUT; ++j) {
            Vector total = all(w[B3 + j]);
            for (int64_t k = 0; k < H2; ++k) total += w[W3 + j * H2 + k] * load(hidden + (H1 + k) * points + x);
            total *= load(fit.shapes + j * points + x);
            store(shaped + j * points + x, total);
            if (j < 2) momentum += total * load(fit.quadrature + x);
        }
    const REAL missing = 1 - sum(momentum);
    for (int64_t x = 0; x < points; x += LANES)
        for (int64_t f = 0; f < FLAVOURS; ++f) {
            Vector total = {};
            for (int64_t j = 0; j < OUT; ++j)
                total += fit.rotation[j * FLAVOURS + f] *
                         (load(shaped + j * points + x) + missing * load(fit.bump + j * points + x));
            store(flavours + f * points + x, total);
        }
}

static void weights_back(const Fit& fit, const REAL* w, const REAL* hidden, const REAL* back, REAL* gradient) {
    const int64_t points = fit.points;
    REAL eight[OUT * 256], below[HIDDEN * 256];
    Vector missing = {};
    for (int64_t x = 0; x < points; x += LANES)
        for (int64_t j = 0; j < OUT; ++j) {
            Vector total = {};
            for (int64_t f = 0; f < FLAVOURS; ++f) total += fit.rotation[j * FLAVOURS + f] * load(back + f * points + x);
            missing += total * load(fit.bump + j * points + x);
            store(eight + j * points + x, total);
        }
    const REAL of_momentum = -sum(missing);
    for (int64_t x = 0; x < points; x += LANES)
        for (int64_t j = 0; j < OUT; ++j) {
            Vector total = load(eight + j * points + x);
            if (j < 2) total += of_momentum * load(fit.quadrature + x);
            store(eight + j * points + x, total * load(fit.shapes + j * points + x));
        }
    for (int64_t x = 0; x < points; x += LANES) {
        for (int64_t k = 0; k < H2; ++k) {
            Vector total = {};
            for (int64_t j = 0; j < OUT; ++j) total += w[W3 + j * H2 + k] * load(eight + j * points + x);
            const Vector y = load(hidden + (H1 + k) * points + x);
            store(below + (H1 + k) * points + x, total * (1 - y * y));
        }
        for (int64_t k = 0; k < H1; ++k) {
            Vector total = {};
            for (int64_t j = 0; j < H2; ++j) total += w[W2 + j * H1 + k] * load(below + (H1 + j) * points + x);
            const Vector y = load(hidden + k * points + x);
            store(below + k * points + x, total * (1 - y * y));
        }
    }
    struct Layer { const REAL *deltas, *inputs; int64_t outputs, width, weights, biases; };
    const Layer layers[] = {{below, fit.inputs, H1, IN, W1, B1},
                            {below + H1 * points, hidden, H2, H1, W2, B2},
                            {eight, hidden + H1 * points, OUT, H2, W3, B3}};
    for (const Layer& layer : layers)
        for (int64_t j = 0; j < layer.outputs; ++j) {
            for (int64_t k = 0; k < layer.width; ++k) {
                Vector total = {};
                for (int64_t x = 0; x < points; x += LANES)
                    total += load(layer.deltas + j * points + x) * load(layer.inputs + k * points + x);
                gradient[layer.weights + j * layer.width + k] = sum(total);
            }
            Vector total = {};
            for (int64_t x = 0; x < points; x += LANES) total += load(layer.deltas + j * points + x);
            gradient[layer.biases + j] = sum(total);
        }
}

// A tile (points, points) of a two-flavour table meets `count` replicas: half = tile^T times their `from`.
template <int64_t COUNT>
static void meet(const REAL* tile, int64_t points, int64_t used, const REAL* const* from, REAL* const* half) {
    for (int64_t x = 0; x < points; x += 2 * LANES) {
        Vector left[COUNT] = {}, right[COUNT] = {};
        for (int64_t y = 0; y < used; ++y) {
            const Vector a = load(tile + y * points + x), b = load(tile + y * points + x + LANES);
            #pragma GCC unroll 4
            for (int64_t r = 0; r < COUNT; ++r) {
                left[r] += from[r][y] * a;
                right[r] += from[r][y] * b;
            }
        }
        #pragma GCC unroll 4
        for (int64_t r = 0; r < COUNT; ++r) {
            store(half[r] + x, left[r]);
            store(half[r] + x + LANES, right[r]);
        }
    }
}
static void meet_some(int64_t count, const REAL* tile, int64_t points, int64_t used, const REAL* const* from, REAL* const* half) {
    if (count == 4) meet<4>(tile, points, used, from, half);
    else if (count == 3) meet<3>(tile, points, used, from, half);
    else if (count == 2) meet<2>(tile, points, used, from, half);
    else meet<1>(tile, points, used, from, half);
}

// values (R, singles' data and conditions, then pairs' data); half (all tiles, R, x) is kept for backward.
static void observe(const Fit& fit, const REAL* flavours, REAL* values, REAL* half, int64_t columns) {
    const int64_t points = fit.points, of_replica = FLAVOURS * points;
    const REAL* table = fit.single_tables;
    const int64_t* channels = fit.single_channels;
    int64_t column = 0;
    for (int64_t set = 0; set < fit.singles; ++set) {
        const int64_t data = fit.single_sizes[2 * set], width = fit.single_sizes[2 * set + 1];
        for (int64_t r = 0; r < fit.replicas; ++r)
            for (int64_t n = 0; n < data; ++n) {
                Vector total = {};
                for (int64_t f = 0; f < width; ++f)
                    for (int64_t x = 0; x < points; x += LANES)
                        total += load(table + (n * width + f) * points + x) *
                                 load(flavours + r * of_replica + channels[f] * points + x);
                values[r * columns + column + n] = sum(total);
            }
        table += data * width * points, channels += width, column += data;
    }
    table = fit.pair_tables, channels = fit.pair_channels;
    for (int64_t set = 0; set < fit.pairs; ++set) {
        const int64_t data = fit.pair_sizes[2 * set], width = fit.pair_sizes[2 * set + 1];
        for (int64_t n = 0; n < data; ++n, ++column) {
            for (int64_t r = 0; r < fit.replicas; ++r) values[r * columns + column] = 0;
            for (int64_t f = 0; f < width; ++f, table += points * points)
                for (int64_t r = 0; r < fit.replicas; r += AT_ONCE) {
                    const int64_t count = fit.replicas - r < AT_ONCE ? fit.replicas - r : AT_ONCE;
                    const REAL* from[AT_ONCE];
                    REAL* to[AT_ONCE];
                    for (int64_t i = 0; i < count; ++i) {
                        from[i] = flavours + (r + i) * of_replica + channels[2 * f + 1] * points;
                        to[i] = half + (f * fit.replicas + r + i) * points;
                    }
                    meet_some(count, table, points, fit.used, from, to);
                    for (int64_t i = 0; i < count; ++i) {
                        Vector total = {};
                        for (int64_t x = 0; x < points; x += LANES)
                            total += load(to[i] + x) *
                                     load(flavours + (r + i) * of_replica + channels[2 * f] * points + x);
                        values[(r + i) * columns + column] += sum(total);
                    }
                }
            half += width * fit.replicas * points;
        }
        channels += 2 * width;
    }
}

// back (R, 14, x): what a change of a flavour does to the loss, from slopes (R, columns), what a value's change does.
static void observe_back(const Fit& fit, const REAL* flavours, const REAL* slopes, const REAL* half, REAL* back,
                         int64_t columns) {
    const int64_t points = fit.points, of_replica = FLAVOURS * points;
    memset(back, 0, fit.replicas * of_replica * sizeof(REAL));
    const REAL* table = fit.single_tables;
    const int64_t* channels = fit.single_channels;
    int64_t column = 0;
    for (int64_t set = 0; set < fit.singles; ++set) {
        const int64_t data = fit.single_sizes[2 * set], width = fit.single_sizes[2 * set + 1];
        for (int64_t r = 0; r < fit.replicas; ++r)
            for (int64_t f = 0; f < width; ++f) {
                REAL* to = back + r * of_replica + channels[f] * points;
                for (int64_t x = 0; x < points; x += LANES) {
                    Vector total = load(to + x);
                    for (int64_t n = 0; n < data; ++n)
                        total += slopes[r * columns + column + n] * load(table + (n * width + f) * points + x);
                    store(to + x, total);
                }
            }
        table += data * width * points, channels += width, column += data;
    }
    table = fit.pair_turned, channels = fit.pair_channels;
    for (int64_t set = 0; set < fit.pairs; ++set) {
        const int64_t data = fit.pair_sizes[2 * set], width = fit.pair_sizes[2 * set + 1];
        for (int64_t n = 0; n < data; ++n, ++column)
            for (int64_t f = 0; f < width; ++f, table += points * points, half += fit.replicas * points)
                for (int64_t r = 0; r < fit.replicas; r += AT_ONCE) {
                    const int64_t count = fit.replicas - r < AT_ONCE ? fit.replicas - r : AT_ONCE;
                    REAL made[AT_ONCE][256], *to[AT_ONCE];
                    const REAL* from[AT_ONCE];
                    for (int64_t i = 0; i < count; ++i) {
                        from[i] = flavours + (r + i) * of_replica + channels[2 * f] * points;
                        to[i] = made[i];
                    }
                    meet_some(count, table, points, fit.used, from, to);
                    for (int64_t i = 0; i < count; ++i) {
                        const REAL slope = slopes[(r + i) * columns + column];
                        REAL* first = back + (r + i) * of_replica + channels[2 * f] * points;
                        for (int64_t x = 0; x < points; x += LANES)
                            store(first + x, load(first + x) + slope * load(half + (r + i) * points + x));
                        REAL* second = back + (r + i) * of_replica + channels[2 * f + 1] * points;
                        for (int64_t x = 0; x < points; x += LANES)
                            store(second + x, load(second + x) + slope * load(made[i] + x));
                    }
                }
        channels += 2 * width;
    }
}

// Both chi2 of a replica. inverse holds two dense matrices, of the `training` data and of the others, each row padded to
// LANES; order says which datum stands where. slopes gets the gradient of the training loss.
static void judge(const Fit& fit, const REAL* values, const int64_t* columns_of, const REAL* data, const int64_t* order,
                  int64_t training, const REAL* inverse, REAL* residual, REAL* slopes, REAL* loss, REAL* validation) {
    REAL* const losses[] = {loss, validation};
    for (int64_t part = 0, begin = 0; part < 2; ++part) {
        const int64_t count = part ? fit.data - training : training, row = (count + LANES - 1) / LANES * LANES;
        for (int64_t i = 0; i < row; ++i)
            residual[i] = i < count ? values[columns_of[order[begin + i]]] - data[order[begin + i]] : 0;
        REAL total = 0;
        for (int64_t i = 0; i < count; ++i, inverse += row) {
            Vector even = {}, odd = {};
            int64_t j = 0;
            for (; j + 2 * LANES <= row; j += 2 * LANES) {
                even += load(inverse + j) * load(residual + j);
                odd += load(inverse + j + LANES) * load(residual + j + LANES);
            }
            if (j < row) even += load(inverse + j) * load(residual + j);
            const REAL product = sum(even + odd);
            total += residual[i] * product;
            slopes[columns_of[order[begin + i]]] = part ? 0 : 2 * product;
        }
        *losses[part] = total;
        begin += count;
    }
}

extern "C" int64_t lanes() { return LANES; }

// The losses (R,) of the weights (R, 763), and the gradient of the training losses. columns_of (n) says where among the
// values a datum stands; the conditions begin at conditions_at. inverses holds each replica's two matrices, from starts.
extern "C" void evaluate(int64_t replicas, int64_t points, int64_t used, int64_t singles, int64_t pairs, int64_t data,
                         int64_t conditions, int64_t conditions_at, const REAL* inputs, const REAL* shapes,
                         const REAL* quadrature, const REAL* bump, const REAL* rotation, const int64_t* single_sizes,
                         const int64_t* single_channels, const REAL* single_tables, const int64_t* pair_sizes,
                         const int64_t* pair_channels, const REAL* pair_tables, const REAL* pair_turned, double weight,
                         double alpha, const int64_t* columns_of, const REAL* given, const int64_t* orders,
                         const int64_t* training, const REAL* inverses, const int64_t* starts, const REAL* weights,
                         REAL* hidden, REAL* flavours, REAL* half, REAL* values, REAL* slopes, REAL* residual,
                         REAL* losses, REAL* validation, REAL* gradients) {
    const Fit fit = {replicas, points, used, singles, pairs, data, conditions, inputs, shapes, quadrature, bump, rotation,
                     single_sizes, single_channels, single_tables, pair_sizes, pair_channels, pair_tables, pair_turned,
                     REAL(weight), REAL(alpha)};
    const int64_t columns = data + conditions, of_hidden = HIDDEN * points, of_flavours = FLAVOURS * points;
    for (int64_t r = 0; r < replicas; ++r)
        flavours_of(fit, weights + r * WEIGHTS, hidden + r * of_hidden, flavours + r * of_flavours);
    observe(fit, flavours, values, half, columns);
    for (int64_t r = 0; r < replicas; ++r) {
        REAL* own = slopes + r * columns;
        judge(fit, values + r * columns, columns_of, given + r * data, orders + r * data, training[r],
              inverses + starts[r], residual, own, losses + r, validation + r);
        for (int64_t c = conditions_at; c < conditions_at + conditions; ++c) {
            const REAL value = values[r * columns + c], decayed = fit.alpha * std::exp(-value);
            losses[r] += fit.weight * (value < 0 ? -value : fit.alpha * std::expm1(-value));
            own[c] = -fit.weight * (value < 0 ? REAL(1) : decayed);
        }
    }
    REAL* back = flavours + replicas * of_flavours;
    observe_back(fit, flavours, slopes, half, back, columns);
    for (int64_t r = 0; r < replicas; ++r)
        weights_back(fit, weights + r * WEIGHTS, hidden + r * of_hidden, back + r * of_flavours,
                     gradients + r * WEIGHTS);
}

// torch's update of each replica by its own rate, 0 for one that stands still: Adam where adam[r], else SGD.
extern "C" void update(int64_t replicas, int64_t step, const REAL* gradients, const REAL* rates, const int64_t* adam,
                       REAL* means, REAL* squares, REAL* weights) {
    const double mean_left = 1 - std::pow(0.9, double(step)), square_left = 1 - std::pow(0.999, double(step));
    const REAL keep_square = REAL(0.999), take = REAL(1 - 0.9), take_square = REAL(1 - 0.999), root = REAL(std::sqrt(square_left)), epsilon = REAL(1e-8);
    for (int64_t r = 0; r < replicas; ++r) {
        const REAL* slope = gradients + r * WEIGHTS;
        REAL *mean = means + r * WEIGHTS, *square = squares + r * WEIGHTS, *w = weights + r * WEIGHTS;
        const REAL rate = rates[r], scaled = REAL(rates[r] / mean_left);
        if (!adam[r]) {
            for (int64_t i = 0; i < WEIGHTS; ++i) w[i] -= rate * slope[i];
            continue;
        }
        for (int64_t i = 0; i < WEIGHTS; ++i) {
            mean[i] += take * (slope[i] - mean[i]);
            square[i] = keep_square * square[i] + take_square * slope[i] * slope[i];
            w[i] -= scaled * mean[i] / (std::sqrt(square[i]) / root + epsilon);
        }
    }
}
