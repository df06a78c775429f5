// Types and walks that the kernels share. A kernel gets one structure by value, and its threads take
// the elements in turns, so that any number of blocks is right.

typedef unsigned long long u64;
typedef long long i64;
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

#define MAX_RANK 8
#define THREADS 256
#define LANES 32
// The compiler at run time has no headers.
#define INFINITE __int_as_float(0x7f800000)

__device__ static u64 first_of_thread() {
    return (u64)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ static u64 all_threads() {
    return (u64)gridDim.x * blockDim.x;
}

// Returns the place of the element `at` of a dense tensor of `shape` in one with these strides.
// Numbers of 32 bits are divided in a fraction of the time that 64 bits take.
__device__ static i64 place(u64 at, const u64* shape, const i64* strides) {
    i64 sum = 0;
    int axis = MAX_RANK - 1;
    for (; axis >= 0 && at >> 32 > 0; --axis) {
        sum += (i64)(at % shape[axis]) * strides[axis];
        at /= shape[axis];
    }
    u32 rest = (u32)at;
    for (; axis >= 0 && rest > 0; --axis) {
        // A size that does not fit passes the rest.
        if (shape[axis] >> 32 > 0) return sum + (i64)rest * strides[axis];
        u32 size = (u32)shape[axis];
        sum += (i64)(rest % size) * strides[axis];
        rest /= size;
    }
    return sum;
}

// Returns the remainder of a division.
__device__ static u64 remainder_of(u64 x, u64 by) {
    return (x | by) >> 32 > 0 ? x % by : (u64)((u32)x % (u32)by);
}

__device__ static u64 quotient_of(u64 x, u64 by) {
    return (x | by) >> 32 > 0 ? x / by : (u64)((u32)x / (u32)by);
}

// What a thread reads or writes in one piece: tensors lie at multiples of 256 bytes.
struct alignas(16) Piece {
    u32 words[4];
};

// Copies one element of 1, 2, 4, 8 or 16 bytes.
__device__ static void copy_element(u64 from, i64 from_at, u64 to, i64 to_at, u64 bytes) {
    if (bytes == 1) {
        ((u8*)to)[to_at] = ((const u8*)from)[from_at];
    } else if (bytes == 2) {
        ((u16*)to)[to_at] = ((const u16*)from)[from_at];
    } else if (bytes == 4) {
        ((u32*)to)[to_at] = ((const u32*)from)[from_at];
    } else if (bytes == 8) {
        ((u64*)to)[to_at] = ((const u64*)from)[from_at];
    } else {
        ((Piece*)to)[to_at] = ((const Piece*)from)[from_at];
    }
}
