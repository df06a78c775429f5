// Kernels that compute each element by itself.

// A function of floats that the compiler knows.
template <u32 CODE>
struct KnownFunction {
    FunctionCode code;

    __device__ float operator()(float x) const {
        FunctionCode known = code;
        known.code = CODE;
        return of_float(known, x);
    }
};

template <typename F>
__device__ static void unary_of_floats(const UnaryArguments& a, const F& function) {
    for (u64 i = first_of_thread() * EACH_TIME; i < a.count; i += all_threads() * EACH_TIME) {
        if (i + EACH_TIME <= a.count) {
            Eight x = eight_at(a.element, a.x, i);
            for (int at = 0; at < EACH_TIME; ++at) x.x[at] = function(x.x[at]);
            write_eight(a.element, a.y, i, x);
            continue;
        }
        for (u64 at = i; at < a.count; ++at) {
            write_float(a.element, a.y, at, function(float_at(a.element, a.x, at)));
        }
    }
}

extern "C" __global__ void unary(UnaryArguments a) {
    if (is_float(a.element)) {
        switch (a.function.code) {
            case UNARY_CLIP: return unary_of_floats(a, KnownFunction<UNARY_CLIP>{a.function});
            case UNARY_HARD_SWISH: return unary_of_floats(a, KnownFunction<UNARY_HARD_SWISH>{a.function});
            case UNARY_SIGMOID: return unary_of_floats(a, KnownFunction<UNARY_SIGMOID>{a.function});
            case UNARY_GELU:
                if (a.element == ELEMENT_F32) return unary_of_floats(a, KnownFunction<UNARY_GELU>{a.function});
                return unary_of_floats(a, [](float x) { return gelu_of_halves(x); });
            default: return unary_of_floats(a, [&](float x) { return of_float(a.function, x); });
        }
    }
    for (u64 i = first_of_thread(); i < a.count; i += all_threads()) {
        if (a.element == ELEMENT_I64) {
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
    if (is_float(a.from) && is_float(a.to)) {
        for (u64 i = first_of_thread() * EACH_TIME; i < a.count; i += all_threads() * EACH_TIME) {
            if (i + EACH_TIME <= a.count) {
                write_eight<OF_ANY>(a.to, a.y, i, eight_at<OF_ANY>(a.from, a.x, i));
                continue;
            }
            for (u64 at = i; at < a.count; ++at) {
                write_float<OF_ANY>(a.to, a.y, at, float_at<OF_ANY>(a.from, a.x, at));
            }
        }
        return;
    }
    for (u64 i = first_of_thread(); i < a.count; i += all_threads()) {
        if (is_float(a.from)) {
            float x = float_at<OF_ANY>(a.from, a.x, i);
            if (a.to == ELEMENT_I64) ((i64*)a.y)[i] = whole_of_float(x, true);
            else if (a.to == ELEMENT_I32) ((int*)a.y)[i] = (int)whole_of_float(x, false);
            else ((u8*)a.y)[i] = x != 0.0f;
            continue;
        }
        i64 x = a.from == ELEMENT_I64   ? ((const i64*)a.x)[i]
                : a.from == ELEMENT_I32 ? (i64)((const int*)a.x)[i]
                                        : (i64)(((const u8*)a.x)[i] != 0);
        if (is_float(a.to)) write_float<OF_ANY>(a.to, a.y, i, (float)x);
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

// Returns the place of the element that element i of the output reads of an input: it repeats, each
// for some neighbours. A period of 0 stands for any strides.
__device__ static u64 repeated(u64 i, u64 inner, u64 period, const u64* shape, const i64* strides) {
    if (period == 0) return (u64)place(i, shape, strides);
    return remainder_of(inner == 1 ? i : quotient_of(i, inner), period);
}

// True if eight elements of the output read as many neighbours of an input, or one element.
__device__ static bool is_by_eight(u64 inner, u64 period) {
    return inner == 1 && (period == 1 || (period > 0 && period % EACH_TIME == 0));
}

__device__ static Eight eight_repeated(u32 element, u64 of, u64 i, u64 period) {
    if (period > 1) return eight_at(element, of, remainder_of(i, period));
    float one = float_at(element, of, 0);
    return {{one, one, one, one, one, one, one, one}};
}

__device__ static void float_pairs(const BinaryArguments& a) {
    bool by_eight = is_by_eight(a.left_inner, a.left_period) && is_by_eight(a.right_inner, a.right_period);
    for (u64 i = first_of_thread() * EACH_TIME; i < a.count; i += all_threads() * EACH_TIME) {
        if (by_eight && i + EACH_TIME <= a.count) {
            Eight x = eight_repeated(a.element, a.left, i, a.left_period);
            Eight y = eight_repeated(a.element, a.right, i, a.right_period);
            for (int at = 0; at < EACH_TIME; ++at) {
                x.x[at] = activated(a.activation, float_pair(a.function, x.x[at], y.x[at]));
            }
            write_eight(a.element, a.y, i, x);
            continue;
        }
        u64 end = i + EACH_TIME < a.count ? i + EACH_TIME : a.count;
        for (u64 at = i; at < end; ++at) {
            u64 l = repeated(at, a.left_inner, a.left_period, a.shape, a.left_strides);
            u64 r = repeated(at, a.right_inner, a.right_period, a.shape, a.right_strides);
            float x = float_at(a.element, a.left, l), y = float_at(a.element, a.right, r);
            write_float(a.element, a.y, at, activated(a.activation, float_pair(a.function, x, y)));
        }
    }
}

extern "C" __global__ void binary(BinaryArguments a) {
    if (is_float(a.element) && !is_comparison(a.function)) return float_pairs(a);
    for (u64 i = first_of_thread(); i < a.count; i += all_threads()) {
        u64 l = repeated(i, a.left_inner, a.left_period, a.shape, a.left_strides);
        u64 r = repeated(i, a.right_inner, a.right_period, a.shape, a.right_strides);
        if (is_float(a.element)) {
            float x = float_at(a.element, a.left, l), y = float_at(a.element, a.right, r);
            ((u8*)a.y)[i] = compared(a.function, x, y);
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
    bool by_eight = a.inner == 1 && a.channels % EACH_TIME == 0;
    for (u64 i = first_of_thread() * EACH_TIME; i < a.count; i += all_threads() * EACH_TIME) {
        if (by_eight) {
            u64 channel = remainder_of(i, a.channels);
            Eight x = eight_at(a.element, a.x, i), scale = eight_at(a.element, a.scale, channel);
            Eight shift = eight_at(a.element, a.shift, channel);
            for (int at = 0; at < EACH_TIME; ++at) {
                x.x[at] = activated(a.activation, x.x[at] * scale.x[at] + shift.x[at]);
            }
            write_eight(a.element, a.y, i, x);
            continue;
        }
        u64 end = i + EACH_TIME < a.count ? i + EACH_TIME : a.count;
        for (u64 at = i; at < end; ++at) {
            u64 channel = remainder_of(quotient_of(at, a.inner), a.channels);
            float scale = float_at(a.element, a.scale, channel), shift = float_at(a.element, a.shift, channel);
            write_float(a.element, a.y, at,
                        activated(a.activation, float_at(a.element, a.x, at) * scale + shift));
        }
    }
}
