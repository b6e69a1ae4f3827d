#pragma once
#include <chrono>
#include <cstdint>
#include <thread>
static int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::steady_clock::now().time_since_epoch()).count();
}
static void wait_for_all(int32_t* arrived, int32_t threads) {
    __atomic_fetch_add(arrived, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(arrived, __ATOMIC_ACQUIRE) < threads) std::this_thread::yield();
}
