// Floats of any precision: they are computed in single precision, and rounded when they are written.

__device__ static bool is_float(u32 element) {
    return element == ELEMENT_F32 || element == ELEMENT_F16 || element == ELEMENT_BF16;
}

// True if halves are FP16: kernels for plans of one precision know it when they are compiled.
__device__ static bool is_f16(u32 element) {
#if defined(WITH_F16) && defined(WITH_BF16)
    return element == ELEMENT_F16;
#elif defined(WITH_BF16)
    return false;
#else
    return true;
#endif
}

__device__ static float of_half(u32 element, u16 bits) {
    return is_f16(element) ? of_f16(bits) : of_bf16(bits);
}

__device__ static u16 to_half(u32 element, float x) {
    return is_f16(element) ? to_f16(x) : to_bf16(x);
}

__device__ static float float_at(u32 element, u64 of, u64 at) {
    if (element == ELEMENT_F32) return ((const float*)of)[at];
    return of_half(element, ((const u16*)of)[at]);
}

__device__ static void write_float(u32 element, u64 to, u64 at, float x) {
    if (element == ELEMENT_F32) ((float*)to)[at] = x;
    else ((u16*)to)[at] = to_half(element, x);
}

#define EACH_TIME 8

// Eight floats side by side, the first of which is a multiple of eight: 16 bytes of halves.
struct Eight {
    float x[EACH_TIME];
};

__device__ static Eight eight_at(u32 element, u64 of, u64 at) {
    Eight found;
    if (element == ELEMENT_F32) {
        Piece pieces[2] = {((const Piece*)of)[at / 4], ((const Piece*)of)[at / 4 + 1]};
        for (int i = 0; i < EACH_TIME; ++i) found.x[i] = __uint_as_float(pieces[i / 4].words[i % 4]);
        return found;
    }
    Piece piece = ((const Piece*)of)[at / EACH_TIME];
    for (int i = 0; i < EACH_TIME; ++i) {
        found.x[i] = of_half(element, (u16)(piece.words[i / 2] >> (i % 2 * 16)));
    }
    return found;
}

__device__ static void write_eight(u32 element, u64 to, u64 at, const Eight& from) {
    if (element == ELEMENT_F32) {
        for (int half = 0; half < 2; ++half) {
            Piece piece;
            for (int i = 0; i < 4; ++i) piece.words[i] = __float_as_uint(from.x[half * 4 + i]);
            ((Piece*)to)[at / 4 + half] = piece;
        }
        return;
    }
    Piece piece;
    for (int i = 0; i < 4; ++i) {
        piece.words[i] =
            (u32)to_half(element, from.x[2 * i]) | (u32)to_half(element, from.x[2 * i + 1]) << 16;
    }
    ((Piece*)to)[at / EACH_TIME] = piece;
}
