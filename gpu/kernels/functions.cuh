// The functions of one element.

__device__ static float softplus(float x) {
    return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
}

__device__ static float clamped(float x) {
    return fminf(fmaxf(x, 0.0f), 1.0f);
}

// The error function to 2e-7 (Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26): for
// what is rounded to halves.
__device__ static float error_function_for_halves(float x) {
    float t = reciprocal(1.0f + 0.3275911f * fabsf(x));
    float sum = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    return copysignf(1.0f - sum * power_of_two(-1.4426950408889634f * x * x), x);
}

// GELU of what is rounded to a half.
__device__ static float gelu_of_halves(float x) {
    return 0.5f * x * (1.0f + error_function_for_halves(x * 0.70710678118654752f));
}

__device__ static float of_float(FunctionCode f, float x) {
    switch (f.code) {
        case UNARY_ABS: return fabsf(x);
        case UNARY_ACOS: return acosf(x);
        case UNARY_ACOSH: return acoshf(x);
        case UNARY_ASIN: return asinf(x);
        case UNARY_ASINH: return asinhf(x);
        case UNARY_ATAN: return atanf(x);
        case UNARY_ATANH: return atanhf(x);
        case UNARY_CEIL: return ceilf(x);
        case UNARY_CELU: return fmaxf(x, 0.0f) + fminf(f.a * expm1f(x / f.a), 0.0f);
        case UNARY_CLIP: return fminf(fmaxf(x, f.a), f.b);
        case UNARY_COS: return cosf(x);
        case UNARY_COSH: return coshf(x);
        case UNARY_ELU: return x < 0.0f ? f.a * expm1f(x) : x;
        case UNARY_ERF: return erff(x);
        case UNARY_EXP: return expf(x);
        case UNARY_FLOOR: return floorf(x);
        case UNARY_GELU: return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
        case UNARY_GELU_TANH:
            return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
        case UNARY_HARD_SIGMOID: return clamped(f.a * x + f.b);
        case UNARY_HARD_SWISH: return x * clamped(x / 6.0f + 0.5f);
        case UNARY_LEAKY_RELU: return x < 0.0f ? f.a * x : x;
        case UNARY_LOG: return logf(x);
        case UNARY_MISH: return x * tanhf(softplus(x));
        case UNARY_NEG: return -x;
        case UNARY_NOT: return x == 0.0f ? 1.0f : 0.0f;
        case UNARY_RECIPROCAL: return 1.0f / x;
        // NaN stays NaN, unlike in fmaxf.
        case UNARY_RELU: return x < 0.0f ? 0.0f : x;
        case UNARY_ROUND: return rintf(x);
        case UNARY_SELU: return f.b * (x > 0.0f ? x : f.a * expm1f(x));
        case UNARY_SIGMOID: return 1.0f / (1.0f + expf(-x));
        // NaN stays NaN.
        case UNARY_SIGN: return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == 0.0f ? 0.0f : x;
        case UNARY_SIN: return sinf(x);
        case UNARY_SINH: return sinhf(x);
        case UNARY_SOFTPLUS: return softplus(x);
        case UNARY_SOFTSIGN: return x / (1.0f + fabsf(x));
        case UNARY_SQRT: return sqrtf(x);
        case UNARY_TAN: return tanf(x);
        case UNARY_TANH: return tanhf(x);
        case UNARY_THRESHOLDED_RELU: return x > f.a ? x : 0.0f;
        default: return x;
    }
}

// Computes an activation: the frequent ones without the others' registers.
__device__ __noinline__ static float of_rare(FunctionCode f, float x) {
    return of_float(f, x);
}

__device__ static float activated(const FunctionCode& f, float x) {
    if (f.code == 0) return x;
    if (f.code == UNARY_RELU) return x < 0.0f ? 0.0f : x;
    if (f.code == UNARY_CLIP) return fminf(fmaxf(x, f.a), f.b);
    return of_rare(f, x);
}

__device__ static i64 of_whole(u32 code, i64 x) {
    switch (code) {
        case UNARY_ABS: return x < 0 ? (i64)(0 - (u64)x) : x;
        case UNARY_NEG: return (i64)(0 - (u64)x);
        default: return (x > 0) - (x < 0);
    }
}
