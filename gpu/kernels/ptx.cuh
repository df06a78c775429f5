// What cards do with halves and with warps, by their own instructions: the compiler at run time has no
// headers. A compiler for the host has its own forms of these (gpu/tests/harness/cuda_on_host.h).

#ifdef __CUDACC__

#define WHOLE_WARP 0xffffffffu

__device__ static float of_f16(u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

// Rounds to nearest, ties to even, as all that writes halves.
__device__ static u16 to_f16(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

__device__ static float of_bf16(u16 bits) {
    return __uint_as_float((u32)bits << 16);
}

__device__ static u16 to_bf16(float x) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

// Rounds two floats to neighbours, the first of which has the lower address.
__device__ static u32 to_f16_pair(float x, float y) {
    u32 bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(y), "f"(x));
    return bits;
}

__device__ static u32 to_bf16_pair(float x, float y) {
    u32 bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(y), "f"(x));
    return bits;
}

// Returns 2^x to 2^-22, for what is rounded to halves.
__device__ static float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Returns 1 / x to one unit in the last place, for what is rounded to halves.
__device__ static float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Returns the number of the lane whose index differs by these bits.
__device__ static float of_lane(float x, u32 bits) {
    return __shfl_xor_sync(WHOLE_WARP, x, bits);
}

__device__ static double of_lane(double x, u32 bits) {
    return __shfl_xor_sync(WHOLE_WARP, x, bits);
}

__device__ static u32 shared_address(const void* at) {
    u32 address;
    asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(address) : "l"(at));
    return address;
}

// Starts to copy 16 bytes to shared memory, or zeros.
__device__ static void copy_async(u16* to, const u16* from, bool valid) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0;"
                 " @p cp.async.cg.shared.global [%0], [%1], 16;"
                 " @!p st.shared.v4.u32 [%0], {%3, %3, %3, %3}; }" ::"r"(shared_address(to)),
                 "l"(from), "r"((u32)valid), "r"(0)
                 : "memory");
}

// Ends a group of copies.
__device__ static void commit_async() {
    asm volatile("cp.async.commit_group;");
}

// Waits until at most this many groups of the thread's copies are under way.
template <int GROUPS>
__device__ static void wait_async() {
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}

// Loads four matrices of 8 by 8 halves: each lane gives the address of a row of 16 bytes, eight lanes
// a matrix, and gets two neighbours of a row of each.
__device__ static void load_matrices(u32 (&to)[4], const u16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// As load_matrices, of the transposed matrices.
__device__ static void load_matrices_transposed(u32 (&to)[4], const u16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Adds the product of 16 by 16 and 16 by 8 halves, which a warp has together, to 16 by 8 sums.
template <bool BF16>
__device__ static void add_product(float (&sums)[4], const u32 (&left)[4], u32 right_0, u32 right_1) {
    if (BF16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right_0), "r"(right_1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right_0), "r"(right_1));
    }
}

#endif
