// Multiply-adds and nothing else, in CHAINS chains that wait for none of one another: the most that a core can do.
#include "team.h"
#include <cstddef>
#include <cstring>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#define REGISTER "v"
constexpr std::size_t CHAINS = 12;  // at most two multiply-adds start in a cycle and take 4 to 6; 16 registers hold it
#elif defined(__aarch64__)
#include <arm_neon.h>
#define REGISTER "w"
constexpr std::size_t CHAINS = 24;  // at most four start in a cycle and take 4
#else
#error "no multiply-adds of this processor are known"
#endif

// A form is an instruction: what it does to a sum, and how many multiply-adds that is.
template <typename T>
struct Numbers {
    typedef T Sum, Factor;
    static constexpr int64_t MULTIPLY_ADDS = 1;
    static void step(Sum& sum, const Factor& a, const Factor& b) { sum = sum * a + b; }
};

template <typename T, int BYTES>
struct Vectors {
    typedef T Sum __attribute__((vector_size(BYTES)));
    typedef Sum Factor;
    static constexpr int64_t MULTIPLY_ADDS = BYTES / sizeof(T);
    static void step(Sum& sum, const Factor& a, const Factor& b) { sum = sum * a + b; }
};

#define INSTRUCTION_FORM(NAME, SUM, FACTOR, COUNT, INTRINSIC)                                                        \
    struct NAME {                                                                                                   \
        using Sum = SUM;                                                                                            \
        using Factor = FACTOR;                                                                                      \
        static constexpr int64_t MULTIPLY_ADDS = COUNT;                                                             \
        static void step(Sum& sum, const Factor& a, const Factor& b) { sum = INTRINSIC(sum, a, b); }                \
    };

// Tells the compiler that the sum changes, without an instruction that changes it. So the compiler can neither foresee
// a sum nor join steps of one chain or of two, and it keeps every sum in a register.
template <typename Sum>
static void change(Sum& sum) {
    asm volatile("" : "+" REGISTER(sum));
}

// Returns the multiply-adds of `repeats` steps of every chain, begun when `threads` threads have arrived. times[0] and
// times[1] are begin and end.
template <typename Form, std::size_t... CHAIN>
static int64_t run(const void* factors, int64_t repeats, int32_t* arrived, int32_t threads, int64_t* times,
                   std::index_sequence<CHAIN...>) {
    typename Form::Factor a, b;
    memcpy(&a, factors, sizeof a);
    memcpy(&b, factors, sizeof b);
    typename Form::Sum sums[sizeof...(CHAIN)] = {};
    wait_for_all(arrived, threads);
    times[0] = now_ns();
    for (int64_t repeat = 0; repeat < repeats; ++repeat) {
        ((Form::step(sums[CHAIN], a, b), change(sums[CHAIN])), ...);
    }
    times[1] = now_ns();
    return repeats * int64_t(sizeof...(CHAIN)) * Form::MULTIPLY_ADDS;
}

#define FORM(NAME, ...)                                                                                             \
    extern "C" int64_t NAME(const void* factors, int64_t repeats, int32_t* arrived, int32_t threads,                \
                            int64_t* times) {                                                                       \
        return run<__VA_ARGS__>(factors, repeats, arrived, threads, times, std::make_index_sequence<CHAINS>());     \
    }

FORM(float32_in_32, Numbers<float>)
FORM(float32_in_128, Vectors<float, 16>)
FORM(float64_in_128, Vectors<double, 16>)
#ifdef __AVX__
FORM(float32_in_256, Vectors<float, 32>)
FORM(float64_in_256, Vectors<double, 32>)
#endif
#ifdef __AVX512F__
FORM(float32_in_512, Vectors<float, 64>)
FORM(float64_in_512, Vectors<double, 64>)
#endif
#ifdef __AVX512FP16__
FORM(float16_in_256, Vectors<_Float16, 32>)
FORM(float16_in_512, Vectors<_Float16, 64>)
#endif
#ifdef __AVX512BF16__
INSTRUCTION_FORM(Bfloat16In512, __m512, __m512bh, 32, _mm512_dpbf16_ps)
FORM(bfloat16_in_512, Bfloat16In512)
#endif
#if defined(__AVX512BF16__) && defined(__AVX512VL__)
INSTRUCTION_FORM(Bfloat16In256, __m256, __m256bh, 16, _mm256_dpbf16_ps)
FORM(bfloat16_in_256, Bfloat16In256)
#endif
#ifdef __AVX512VNNI__
INSTRUCTION_FORM(Int8In512, __m512i, __m512i, 64, _mm512_dpbusd_epi32)
FORM(int8_in_512, Int8In512)
#endif
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
INSTRUCTION_FORM(Int8In256, __m256i, __m256i, 32, _mm256_dpbusd_epi32)
FORM(int8_in_256, Int8In256)
#elif defined(__AVXVNNI__)
INSTRUCTION_FORM(Int8In256, __m256i, __m256i, 32, _mm256_dpbusd_avx_epi32)
FORM(int8_in_256, Int8In256)
#endif
#ifdef __ARM_FEATURE_FP16_VECTOR_ARITHMETIC
INSTRUCTION_FORM(Float16In128, float16x8_t, float16x8_t, 8, vfmaq_f16)
FORM(float16_in_128, Float16In128)
#endif
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
INSTRUCTION_FORM(Bfloat16In128, float32x4_t, bfloat16x8_t, 8, vbfdotq_f32)
INSTRUCTION_FORM(Bfloat16Products, float32x4_t, bfloat16x8_t, 16, vbfmmlaq_f32)
FORM(bfloat16_in_128, Bfloat16In128)
FORM(bfloat16_in_products, Bfloat16Products)
#endif
#ifdef __ARM_FEATURE_DOTPROD
INSTRUCTION_FORM(Int8In128, int32x4_t, int8x16_t, 16, vdotq_s32)
FORM(int8_in_128, Int8In128)
#endif
#ifdef __ARM_FEATURE_MATMUL_INT8
INSTRUCTION_FORM(Int8Products, int32x4_t, int8x16_t, 32, vmmlaq_s32)
FORM(int8_in_products, Int8Products)
#endif

#if defined(__AMX_TILE__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

constexpr int ASK_FOR_STATE = 0x1023, STATE_OF_TILES = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
constexpr int TILE_CHAINS = 6;  // an instruction starts every 16 cycles and takes 52, so four are enough
constexpr int64_t ROWS = 16, COLUMNS = 16, ROW_BYTES = 64;

struct alignas(64) Palette {
    uint8_t number = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// As a form, on tiles; 0 where Linux does not let this process use them. The intrinsics take the tile as a literal.
#define TILE_FORM(NAME, NUMBER_BYTES, INSTRUCTION)                                                                  \
    extern "C" int64_t NAME(const void* factors, int64_t repeats, int32_t* arrived, int32_t threads,                \
                            int64_t* times) {                                                                       \
        bool refused = syscall(SYS_arch_prctl, ASK_FOR_STATE, STATE_OF_TILES) != 0;                                 \
        wait_for_all(arrived, threads);                                                                             \
        times[0] = times[1] = now_ns();                                                                             \
        if (refused) return 0;                                                                                      \
        Palette palette;                                                                                            \
        _tile_loadconfig(&palette);                                                                                 \
        _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3); _tile_zero(4); _tile_zero(5);                   \
        _tile_loadd(6, factors, ROW_BYTES);                                                                         \
        _tile_loadd(7, factors, ROW_BYTES);                                                                         \
        for (int64_t repeat = 0; repeat < repeats; ++repeat) {                                                      \
            INSTRUCTION(0, 6, 7); INSTRUCTION(1, 6, 7); INSTRUCTION(2, 6, 7);                                       \
            INSTRUCTION(3, 6, 7); INSTRUCTION(4, 6, 7); INSTRUCTION(5, 6, 7);                                       \
        }                                                                                                           \
        times[1] = now_ns();                                                                                        \
        _tile_release();                                                                                            \
        return repeats * TILE_CHAINS * ROWS * COLUMNS * (ROW_BYTES / NUMBER_BYTES);                                 \
    }

#ifdef __AMX_BF16__
TILE_FORM(bfloat16_in_tiles, 2, _tile_dpbf16ps)
#endif
#ifdef __AMX_INT8__
TILE_FORM(int8_in_tiles, 1, _tile_dpbssd)
#endif
#ifdef __AMX_FP16__
TILE_FORM(float16_in_tiles, 2, _tile_dpfp16ps)
#endif
#endif
