// Floats of any precision: they are computed in single precision, and rounded when they are written.

__device__ static bool is_float(u32 element) {
    return element == ELEMENT_F32 || element == ELEMENT_F16 || element == ELEMENT_BF16;
}

// Which halves a kernel meets: those of its plan's precision, which are known when it is compiled, or
// either, where a model's inputs and outputs are converted.
enum Halves { OF_PLAN, OF_ANY };

template <Halves HALVES>
__device__ static bool is_f16(u32 element) {
    if (HALVES == OF_ANY) return element == ELEMENT_F16;
#ifdef WITH_BF16
    return false;
#else
    return true;
#endif
}

template <Halves HALVES = OF_PLAN>
__device__ static float of_half(u32 element, u16 bits) {
    return is_f16<HALVES>(element) ? of_f16(bits) : of_bf16(bits);
}

template <Halves HALVES = OF_PLAN>
__device__ static u16 to_half(u32 element, float x) {
    return is_f16<HALVES>(element) ? to_f16(x) : to_bf16(x);
}

// Rounds two floats to neighbours of four bytes.
template <Halves HALVES = OF_PLAN>
__device__ static u32 to_halves(u32 element, float x, float y) {
    return is_f16<HALVES>(element) ? to_f16_pair(x, y) : to_bf16_pair(x, y);
}

template <Halves HALVES = OF_PLAN>
__device__ static float float_at(u32 element, u64 of, u64 at) {
    if (element == ELEMENT_F32) return ((const float*)of)[at];
    return of_half<HALVES>(element, ((const u16*)of)[at]);
}

template <Halves HALVES = OF_PLAN>
__device__ static void write_float(u32 element, u64 to, u64 at, float x) {
    if (element == ELEMENT_F32) ((float*)to)[at] = x;
    else ((u16*)to)[at] = to_half<HALVES>(element, x);
}

#define EACH_TIME 8

// Eight floats side by side, the first of which is a multiple of eight: 16 bytes of halves.
struct Eight {
    float x[EACH_TIME];
};

template <Halves HALVES = OF_PLAN>
__device__ static Eight eight_at(u32 element, u64 of, u64 at) {
    Eight found;
    if (element == ELEMENT_F32) {
        Piece pieces[2] = {((const Piece*)of)[at / 4], ((const Piece*)of)[at / 4 + 1]};
        for (int i = 0; i < EACH_TIME; ++i) found.x[i] = __uint_as_float(pieces[i / 4].words[i % 4]);
        return found;
    }
    Piece piece = ((const Piece*)of)[at / EACH_TIME];
    for (int i = 0; i < EACH_TIME; ++i) {
        found.x[i] = of_half<HALVES>(element, (u16)(piece.words[i / 2] >> (i % 2 * 16)));
    }
    return found;
}

template <Halves HALVES = OF_PLAN>
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
    for (int i = 0; i < 4; ++i) piece.words[i] = to_halves<HALVES>(element, from.x[2 * i], from.x[2 * i + 1]);
    ((Piece*)to)[at / EACH_TIME] = piece;
}
