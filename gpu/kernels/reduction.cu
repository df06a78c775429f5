// Kernels that compute one number of many: a block for each, in double precision as in the
// reference.

enum Combine { BY_SUM, BY_MAX, BY_MIN, BY_PRODUCT };

__device__ static double combined(Combine by, double x, double y) {
    switch (by) {
        case BY_SUM: return x + y;
        case BY_MAX: return fmax(x, y);
        case BY_MIN: return fmin(x, y);
        default: return x * y;
    }
}

// Combines the numbers of all threads of a block; each gets the result.
__device__ static double of_block(Combine by, double value) {
    __shared__ double values[THREADS];
    __syncthreads();
    values[threadIdx.x] = value;
    __syncthreads();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            values[threadIdx.x] = combined(by, values[threadIdx.x], values[threadIdx.x + half]);
        }
        __syncthreads();
    }
    return values[0];
}

__device__ static double element_at(u32 element, u64 of, i64 at) {
    return element == ELEMENT_F32 ? (double)((const float*)of)[at] : (double)whole_at(element, of, at);
}

// What each element of a reduction adds to it.
__device__ static double term(u32 function, double x, double most) {
    switch (function) {
        case REDUCE_L1: return fabs(x);
        case REDUCE_L2:
        case REDUCE_SUM_SQUARE: return x * x;
        case REDUCE_LOG_SUM_EXP: return exp(x - most);
        default: return x;
    }
}

__device__ static double reduced(const ReduceArguments& a, i64 start) {
    Combine by = a.function == REDUCE_MAX    ? BY_MAX
                 : a.function == REDUCE_MIN  ? BY_MIN
                 : a.function == REDUCE_PROD ? BY_PRODUCT
                                             : BY_SUM;
    double none = by == BY_MAX ? -INFINITE : by == BY_MIN ? INFINITE : by == BY_PRODUCT ? 1.0 : 0.0;
    double most = -INFINITE;
    if (a.function == REDUCE_LOG_SUM_EXP) {
        for (u64 at = threadIdx.x; at < a.reduced; at += THREADS) {
            most = fmax(most, element_at(a.element, a.x, start + place(at, a.gone_shape, a.gone_strides)));
        }
        most = of_block(BY_MAX, most);
    }
    double value = none;
    for (u64 at = threadIdx.x; at < a.reduced; at += THREADS) {
        double x = element_at(a.element, a.x, start + place(at, a.gone_shape, a.gone_strides));
        value = combined(by, value, term(a.function, x, most));
    }
    value = of_block(by, value);
    switch (a.function) {
        case REDUCE_MEAN: return value / (double)a.reduced;
        case REDUCE_L2: return sqrt(value);
        case REDUCE_LOG_SUM: return log(value);
        case REDUCE_LOG_SUM_EXP: return most + log(value);
        default: return value;
    }
}

// Reduces whole numbers one after another, so that they stay exact.
__device__ static i64 reduced_whole(const ReduceArguments& a, i64 start) {
    u64 sum = a.function == REDUCE_PROD ? 1 : 0;
    for (u64 at = 0; at < a.reduced; ++at) {
        i64 x = whole_at(a.element, a.x, start + place(at, a.gone_shape, a.gone_strides));
        switch (a.function) {
            case REDUCE_MAX: sum = at == 0 || x > (i64)sum ? (u64)x : sum; break;
            case REDUCE_MIN: sum = at == 0 || x < (i64)sum ? (u64)x : sum; break;
            case REDUCE_PROD: sum *= (u64)x; break;
            case REDUCE_L1: sum += x < 0 ? 0 - (u64)x : (u64)x; break;
            case REDUCE_SUM_SQUARE: sum += (u64)x * (u64)x; break;
            default: sum += (u64)x;
        }
    }
    return a.function == REDUCE_MEAN && a.reduced > 0 ? (i64)sum / (i64)a.reduced : (i64)sum;
}

__device__ static bool is_of_floats(u32 function) {
    return function == REDUCE_L2 || function == REDUCE_LOG_SUM || function == REDUCE_LOG_SUM_EXP;
}

extern "C" __global__ void __launch_bounds__(THREADS) reduce(ReduceArguments a) {
    for (u64 i = blockIdx.x; i < a.count; i += gridDim.x) {
        i64 start = place(i, a.kept_shape, a.kept_strides);
        if (a.element == ELEMENT_F32) {
            float value = (float)reduced(a, start);
            if (threadIdx.x == 0) ((float*)a.y)[i] = value;
            continue;
        }
        i64 value = 0;
        if (is_of_floats(a.function)) {
            value = (i64)reduced(a, start);
        } else if (threadIdx.x == 0) {
            value = reduced_whole(a, start);
        }
        if (threadIdx.x == 0) {
            if (a.element == ELEMENT_I64) ((i64*)a.y)[i] = value;
            else ((int*)a.y)[i] = (int)value;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) softmax(SoftmaxArguments a) {
    for (u64 i = blockIdx.x; i < a.outer * a.inner; i += gridDim.x) {
        u64 first = i / a.inner * a.size * a.inner + i % a.inner;
        const float* x = (const float*)a.x + first;
        float* y = (float*)a.y + first;
        double most = -INFINITE, sum = 0.0;
        for (u64 at = threadIdx.x; at < a.size; at += THREADS) most = fmax(most, (double)x[at * a.inner]);
        most = of_block(BY_MAX, most);
        for (u64 at = threadIdx.x; at < a.size; at += THREADS) sum += exp((double)x[at * a.inner] - most);
        sum = of_block(BY_SUM, sum);
        for (u64 at = threadIdx.x; at < a.size; at += THREADS) {
            double over = (double)x[at * a.inner] - most;
            y[at * a.inner] = (float)(a.logarithm ? over - log(sum) : exp(over) / sum);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) layer_norm(LayerNormArguments a) {
    for (u64 row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const float* x = (const float*)a.x + row * a.size;
        float* y = (float*)a.y + row * a.size;
        double sum = 0.0, squares = 0.0;
        for (u64 at = threadIdx.x; at < a.size; at += THREADS) sum += (double)x[at];
        double mean = of_block(BY_SUM, sum) / (double)a.size;
        for (u64 at = threadIdx.x; at < a.size; at += THREADS) {
            double apart = (double)x[at] - mean;
            squares += apart * apart;
        }
        double factor = 1.0 / sqrt(of_block(BY_SUM, squares) / (double)a.size + (double)a.epsilon);
        for (u64 at = threadIdx.x; at < a.size; at += THREADS) {
            float bias = a.bias ? ((const float*)a.bias)[at] : 0.0f;
            y[at] = (float)(((double)x[at] - mean) * factor) * ((const float*)a.scale)[at] + bias;
        }
    }
}
