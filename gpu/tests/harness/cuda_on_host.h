// CUDA's kernels as C++ for the host, in front of their source: what a card gives a kernel, one block
// at a time. The threads of a block are fibers that take turns: one goes on until it waits for the
// others of its block or of its warp. Used by kernels_on_host.rs alone.

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <string>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
// One block runs at a time.
#define __shared__ static

struct Dimensions {
    unsigned int x, y, z;
};

static Dimensions threadIdx, blockIdx, blockDim, gridDim;

static const int HOST_THREADS = 256, HOST_LANES = 32;
static const size_t HOST_STACK = 1 << 17;

enum FiberState { READY, AT_BLOCK, AT_WARP, OVER };

struct Fiber {
    ucontext_t context;
    FiberState state;
    char* stack;
};

static Fiber fibers[HOST_THREADS];
static ucontext_t scheduler;
static int running;

static void host_wait(FiberState state) {
    fibers[running].state = state;
    swapcontext(&fibers[running].context, &scheduler);
}

static void __syncthreads() {
    host_wait(AT_BLOCK);
}

// Waits for the other lanes of the warp, which all come here.
static void host_sync_warp() {
    host_wait(AT_WARP);
}

static void host_fail(const char* why) {
    fprintf(stderr, "%s\n", why);
    exit(1);
}

// Lets every fiber go on that no other holds back. Returns false when all are over.
static bool host_turn(void (*enter)()) {
    int over = 0, at_block = 0;
    bool moved = false;
    for (int at = 0; at < HOST_THREADS; ++at) {
        if (fibers[at].state == READY) {
            running = at;
            threadIdx = {(unsigned)at, 0, 0};
            swapcontext(&scheduler, &fibers[at].context);
            moved = true;
        }
        over += fibers[at].state == OVER;
        at_block += fibers[at].state == AT_BLOCK;
    }
    for (int warp = 0; warp < HOST_THREADS; warp += HOST_LANES) {
        int waiting = 0;
        for (int at = warp; at < warp + HOST_LANES; ++at) waiting += fibers[at].state == AT_WARP;
        if (waiting == HOST_LANES) {
            for (int at = warp; at < warp + HOST_LANES; ++at) fibers[at].state = READY;
            moved = true;
        }
    }
    if (over == HOST_THREADS) return false;
    if (at_block > 0 && at_block == HOST_THREADS) {
        for (Fiber& fiber : fibers) fiber.state = READY;
        moved = true;
    }
    if (!moved) host_fail("the threads of a block wait for different things");
    return true;
}

static float __int_as_float(int bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static float __uint_as_float(unsigned bits) {
    return __int_as_float((int)bits);
}

static unsigned __float_as_uint(float x) {
    unsigned bits;
    memcpy(&bits, &x, 4);
    return bits;
}

// As cards convert: towards zero, the nearest number in range.
static long long __float2ll_rz(float x) {
    if (x >= 9223372036854775808.0f) return INT64_MAX;
    return x < -9223372036854775808.0f ? INT64_MIN : (long long)x;
}

static int __float2int_rz(float x) {
    if (x >= 2147483648.0f) return INT32_MAX;
    return x < -2147483648.0f ? INT32_MIN : (int)x;
}

static float of_bf16(unsigned short bits) {
    return __uint_as_float((unsigned)bits << 16);
}

static unsigned short to_bf16(float x) {
    unsigned bits = __float_as_uint(x);
    if (x != x) return (unsigned short)(bits >> 16 | 0x40);
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float of_f16(unsigned short bits) {
    float sign = bits >> 15 ? -1.0f : 1.0f;
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexpf((float)fraction, -24);
    return sign * ldexpf((float)(fraction | 1024), exponent - 25);
}

static unsigned short to_f16(float x) {
    unsigned short sign = (unsigned short)(__float_as_uint(x) >> 16 & 0x8000);
    if (x != x) return sign | 0x7e00;
    float a = fabsf(x);
    if (a >= 65520.0f) return sign | 0x7c00;
    if (a < 6.103515625e-05f) return sign | (unsigned short)nearbyintf(a * 16777216.0f);
    int exponent;
    float fraction = frexpf(a, &exponent);
    // 11 binary digits; a fraction that is rounded up to 2048 raises the exponent.
    return sign | (unsigned short)(((exponent + 13) << 10) + (int)nearbyintf(fraction * 2048.0f));
}

static unsigned to_f16_pair(float x, float y) { return to_f16(x) | (unsigned)to_f16(y) << 16; }
static unsigned to_bf16_pair(float x, float y) { return to_bf16(x) | (unsigned)to_bf16(y) << 16; }
static float power_of_two(float x) { return exp2f(x); }
static float reciprocal(float x) { return 1.0f / x; }

// What the lanes of a warp show each other: in turns of two places, so that one wait is enough.
struct Shown {
    double number;
    const unsigned short* row;
    unsigned left[4], right[2];
};

static Shown shown[HOST_THREADS][2];
static unsigned char shown_turn[HOST_THREADS];

// Shows a lane's part to its warp, waits for the others, and returns theirs, by `at`.
static int show(const Shown& of) {
    int turn = shown_turn[running] ^= 1;
    shown[running][turn] = of;
    host_sync_warp();
    return turn;
}

static double host_of_lane(double x, unsigned bits) {
    Shown of = {};
    of.number = x;
    int turn = show(of);
    return shown[running ^ bits][turn].number;
}

static float of_lane(float x, unsigned bits) {
    return (float)host_of_lane(x, bits);
}

static double of_lane(double x, unsigned bits) {
    return host_of_lane(x, bits);
}

static void copy_async(unsigned short* to, const unsigned short* from, bool valid) {
    if ((uintptr_t)to % 16 || (valid && (uintptr_t)from % 16)) host_fail("a copy of 16 bytes is not aligned");
    if (valid) memcpy(to, from, 16);
    else memset(to, 0, 16);
}

static void commit_async() {}

template <int GROUPS>
static void wait_async() {}

static void host_load_matrices(unsigned (&to)[4], const unsigned short* row, bool transposed) {
    if ((uintptr_t)row % 16) host_fail("a row of a matrix is not aligned");
    Shown of = {};
    of.row = row;
    int turn = show(of), lane = running % HOST_LANES, warp = running - lane;
    for (int matrix = 0; matrix < 4; ++matrix) {
        unsigned pair = 0;
        for (int at = 0; at < 2; ++at) {
            int down = lane / 4, right = lane % 4 * 2 + at;
            if (transposed) {
                int swapped = down;
                down = right;
                right = swapped;
            }
            pair |= (unsigned)shown[warp + matrix * 8 + down][turn].row[right] << (16 * at);
        }
        to[matrix] = pair;
    }
}

static void load_matrices(unsigned (&to)[4], const unsigned short* row) {
    host_load_matrices(to, row, false);
}

static void load_matrices_transposed(unsigned (&to)[4], const unsigned short* row) {
    host_load_matrices(to, row, true);
}

// mma.m16n8k16, from the PTX manual's table of fragments.
template <bool BF16>
static void add_product(float (&sums)[4], const unsigned (&left)[4], unsigned right_0, unsigned right_1) {
    Shown of = {};
    memcpy(of.left, left, sizeof of.left);
    of.right[0] = right_0;
    of.right[1] = right_1;
    int turn = show(of), lane = running % HOST_LANES, warp = running - lane;
    auto half = [](unsigned pair, int at) {
        unsigned short bits = (unsigned short)(pair >> (16 * at));
        return BF16 ? of_bf16(bits) : of_f16(bits);
    };
    for (int at = 0; at < 4; ++at) {
        int row = lane / 4 + at / 2 * 8, column = lane % 4 * 2 + at % 2;
        float sum = 0.0f;
        for (int k = 0; k < 16; ++k) {
            const Shown& l = shown[warp + row % 8 * 4 + k % 8 / 2][turn];
            const Shown& r = shown[warp + column * 4 + k % 8 / 2][turn];
            sum += half(l.left[row / 8 + k / 8 * 2], k % 2) * half(r.right[k / 8], k % 2);
        }
        sums[at] += sum;
    }
}
