#include <cstdint>
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#ifdef __CLFLUSHOPT__  // lines are thrown out side by side
static void flush_line(const char* line) { _mm_clflushopt(const_cast<char*>(line)); }
#else
static void flush_line(const char* line) { _mm_clflush(line); }
#endif
static void wait() { _mm_mfence(); }
#elif defined(__aarch64__)
static void flush_line(const char* line) { asm volatile("dc civac, %0" ::"r"(line) : "memory"); }
static void wait() { asm volatile("dsb sy" ::: "memory"); }
#else
#error "this processor has no instruction known here that throws a line out of the caches"
#endif
extern "C" void flush(const char* begin, uint64_t bytes, uint64_t line_bytes) {
    const char* first = begin - reinterpret_cast<uint64_t>(begin) % line_bytes;
    for (const char* line = first; line < begin + bytes; line += line_bytes) flush_line(line);
    wait();
}
