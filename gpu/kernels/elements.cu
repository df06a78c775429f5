// Kernels that compute each element by itself.

extern "C" __global__ void unary(UnaryArguments a) {
    for (u64 i = first_of_thread(); i < a.count; i += all_threads()) {
        if (a.element == ELEMENT_F32) {
            ((float*)a.y)[i] = of_float(a.function, ((const float*)a.x)[i]);
        } else if (a.element == ELEMENT_I64) {
            ((i64*)a.y)[i] = of_whole(a.function.code, ((const i64*)a.x)[i]);
        } else if (a.element == ELEMENT_I32) {
            ((int*)a.y)[i] = (int)of_whole(a.function.code, ((const int*)a.x)[i]);
        } else {
            ((u8*)a.y)[i] = ((const u8*)a.x)[i] == 0;
        }
    }
}

// Writes a float as a whole number: towards zero, the nearest one in range, 0 for NaN.
__device__ static i64 whole_of_float(float x, bool wide) {
    if (isnan(x)) return 0;
    if (wide) return __float2ll_rz(x);
    return __float2int_rz(x);
}

extern "C" __global__ void cast(CastArguments a) {
    for (u64 i = first_of_thread(); i < a.count; i += all_threads()) {
        if (a.from == ELEMENT_F32) {
            float x = ((const float*)a.x)[i];
            if (a.to == ELEMENT_F32) ((float*)a.y)[i] = x;
            else if (a.to == ELEMENT_I64) ((i64*)a.y)[i] = whole_of_float(x, true);
            else if (a.to == ELEMENT_I32) ((int*)a.y)[i] = (int)whole_of_float(x, false);
            else ((u8*)a.y)[i] = x != 0.0f;
            continue;
        }
        i64 x = a.from == ELEMENT_I64   ? ((const i64*)a.x)[i]
                : a.from == ELEMENT_I32 ? (i64)((const int*)a.x)[i]
                                        : (i64)(((const u8*)a.x)[i] != 0);
        if (a.to == ELEMENT_F32) ((float*)a.y)[i] = (float)x;
        else if (a.to == ELEMENT_I64) ((i64*)a.y)[i] = x;
        else if (a.to == ELEMENT_I32) ((int*)a.y)[i] = (int)x;
        else ((u8*)a.y)[i] = x != 0;
    }
}

__device__ static float float_pair(u32 function, float x, float y) {
    switch (function) {
        case BINARY_ADD: return x + y;
        case BINARY_SUB: return x - y;
        case BINARY_MUL: return x * y;
        case BINARY_DIV: return x / y;
        case BINARY_POW: return powf(x, y);
        case BINARY_MAX: return fmaxf(x, y);
        case BINARY_MIN: return fminf(x, y);
        case BINARY_MOD: return fmodf(x, y);
        default: return x < 0.0f ? x * y : x;
    }
}

// Multiplies x with itself y times, modulo 2^64; 0 where y is negative or above 2^32 - 1.
__device__ static i64 whole_power(i64 x, i64 y) {
    if (y < 0 || y > 0xffffffffLL) return 0;
    u64 power = 1, base = (u64)x;
    for (u64 rest = (u64)y; rest > 0; rest >>= 1) {
        if (rest & 1) power *= base;
        base *= base;
    }
    return (i64)power;
}

__device__ static i64 whole_pair(u32 function, i64 x, i64 y) {
    switch (function) {
        case BINARY_ADD: return (i64)((u64)x + (u64)y);
        case BINARY_SUB: return (i64)((u64)x - (u64)y);
        case BINARY_MUL: return (i64)((u64)x * (u64)y);
        // The quotient by -1 may pass the range.
        case BINARY_DIV: return y == -1 ? (i64)(0 - (u64)x) : x / y;
        case BINARY_POW: return whole_power(x, y);
        case BINARY_MAX: return x > y ? x : y;
        case BINARY_MIN: return x < y ? x : y;
        case BINARY_MOD: {
            i64 rest = y == -1 ? 0 : x % y;
            return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
        }
        default: return x < 0 ? (i64)((u64)x * (u64)y) : x;
    }
}

template <typename T>
__device__ static bool compared(u32 function, T x, T y) {
    switch (function) {
        case BINARY_EQUAL: return x == y;
        case BINARY_GREATER: return x > y;
        case BINARY_GREATER_OR_EQUAL: return x >= y;
        case BINARY_LESS: return x < y;
        default: return x <= y;
    }
}

__device__ static bool is_comparison(u32 function) {
    return function >= BINARY_EQUAL && function <= BINARY_LESS_OR_EQUAL;
}

__device__ static u8 logic(u32 function, u8 x, u8 y) {
    return function == BINARY_AND ? x & y : function == BINARY_OR ? x | y : x ^ y;
}

__device__ static i64 whole_at(u32 element, u64 of, i64 at) {
    return element == ELEMENT_I64 ? ((const i64*)of)[at] : (i64)((const int*)of)[at];
}

extern "C" __global__ void binary(BinaryArguments a) {
    for (u64 i = first_of_thread(); i < a.count; i += all_threads()) {
        i64 l = place(i, a.shape, a.left_strides), r = place(i, a.shape, a.right_strides);
        if (a.element == ELEMENT_F32) {
            float x = ((const float*)a.left)[l], y = ((const float*)a.right)[r];
            if (is_comparison(a.function)) ((u8*)a.y)[i] = compared(a.function, x, y);
            else ((float*)a.y)[i] = of_float(a.activation, float_pair(a.function, x, y));
        } else if (a.element == ELEMENT_BOOL) {
            ((u8*)a.y)[i] = logic(a.function, ((const u8*)a.left)[l], ((const u8*)a.right)[r]);
        } else {
            i64 x = whole_at(a.element, a.left, l), y = whole_at(a.element, a.right, r);
            if (y == 0 && (a.function == BINARY_DIV || a.function == BINARY_MOD)) {
                *(u32*)a.status = DIVIDED_BY_ZERO;
            } else if (is_comparison(a.function)) {
                ((u8*)a.y)[i] = compared(a.function, x, y);
            } else if (a.element == ELEMENT_I64) {
                ((i64*)a.y)[i] = whole_pair(a.function, x, y);
            } else {
                ((int*)a.y)[i] = (int)whole_pair(a.function, x, y);
            }
        }
    }
}

extern "C" __global__ void select_elements(SelectArguments a) {
    for (u64 i = first_of_thread(); i < a.count; i += all_threads()) {
        if (((const u8*)a.condition)[place(i, a.shape, a.condition_strides)]) {
            copy_element(a.left, place(i, a.shape, a.left_strides), a.y, i, a.bytes);
        } else {
            copy_element(a.right, place(i, a.shape, a.right_strides), a.y, i, a.bytes);
        }
    }
}

extern "C" __global__ void affine(AffineArguments a) {
    for (u64 i = first_of_thread(); i < a.count; i += all_threads()) {
        u64 channel = i / a.inner % a.channels;
        float scale = ((const float*)a.scale)[channel], shift = ((const float*)a.shift)[channel];
        ((float*)a.y)[i] = of_float(a.activation, ((const float*)a.x)[i] * scale + shift);
    }
}
