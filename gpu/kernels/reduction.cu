// Kernels that compute one number of many, in single precision whatever the elements are: a warp or a
// block for each.

enum Combine { BY_SUM, BY_MAX, BY_MIN, BY_PRODUCT };

__device__ static float greater(float x, float y) { return fmaxf(x, y); }
__device__ static double greater(double x, double y) { return fmax(x, y); }
__device__ static float lesser(float x, float y) { return fminf(x, y); }
__device__ static double lesser(double x, double y) { return fmin(x, y); }

template <typename N>
__device__ static N combined(Combine by, N x, N y) {
    switch (by) {
        case BY_SUM: return x + y;
        case BY_MAX: return greater(x, y);
        case BY_MIN: return lesser(x, y);
        default: return x * y;
    }
}

// Combines the numbers of so many neighbouring lanes of a warp; each gets the result.
template <u32 COUNT, typename N>
__device__ static N of_lanes(Combine by, N value) {
    for (u32 bits = COUNT / 2; bits > 0; bits /= 2) value = combined(by, value, of_lane(value, bits));
    return value;
}

template <typename N>
__device__ static N of_warp(Combine by, N value) {
    return of_lanes<LANES>(by, value);
}

// Combines the numbers of all threads of each group of so many neighbouring warps of a block; each
// gets its group's. What `values` had before is read by nobody any more.
template <u32 WARPS, typename N>
__device__ static N of_warps(N (&values)[THREADS / LANES], Combine by, N value) {
    value = of_warp(by, value);
    u32 warp = threadIdx.x / LANES;
    if (threadIdx.x % LANES == 0) values[warp] = value;
    __syncthreads();
    return of_lanes<WARPS>(by, values[warp / WARPS * WARPS + threadIdx.x % WARPS]);
}

// Combines the numbers of all threads of a block; each gets the result.
template <typename N>
__device__ static N of_block(Combine by, N value) {
    __shared__ N values[THREADS / LANES];
    __syncthreads();
    return of_warps<THREADS / LANES>(values, by, value);
}

// Returns an element: floats in single precision, whole numbers in double precision.
template <typename N>
__device__ static N element_at(u32 element, u64 of, i64 at) {
    return is_float(element) ? (N)float_at(element, of, (u64)at) : (N)whole_at(element, of, at);
}

__device__ static float exponential(float x) { return expf(x); }
__device__ static double exponential(double x) { return exp(x); }
__device__ static float logarithm_of(float x) { return logf(x); }
__device__ static double logarithm_of(double x) { return log(x); }
__device__ static float root_of(float x) { return sqrtf(x); }
__device__ static double root_of(double x) { return sqrt(x); }

// What each element of a reduction adds to it.
template <typename N>
__device__ static N term(u32 function, N x, N most) {
    switch (function) {
        case REDUCE_L1: return x < 0 ? -x : x;
        case REDUCE_L2:
        case REDUCE_SUM_SQUARE: return x * x;
        case REDUCE_LOG_SUM_EXP: return exponential(x - most);
        default: return x;
    }
}

template <typename N>
__device__ static N reduced(const ReduceArguments& a, i64 start) {
    Combine by = a.function == REDUCE_MAX    ? BY_MAX
                 : a.function == REDUCE_MIN  ? BY_MIN
                 : a.function == REDUCE_PROD ? BY_PRODUCT
                                             : BY_SUM;
    N infinite = (N)INFINITE, none = by == BY_MAX ? -infinite : by == BY_MIN ? infinite : by == BY_PRODUCT ? 1 : 0;
    N most = -infinite;
    if (a.function == REDUCE_LOG_SUM_EXP) {
        for (u64 at = threadIdx.x; at < a.reduced; at += THREADS) {
            i64 from = start + place(at, a.gone_shape, a.gone_strides);
            most = greater(most, element_at<N>(a.element, a.x, from));
        }
        most = of_block(BY_MAX, most);
    }
    N value = none;
    for (u64 at = threadIdx.x; at < a.reduced; at += THREADS) {
        N x = element_at<N>(a.element, a.x, start + place(at, a.gone_shape, a.gone_strides));
        value = combined(by, value, term(a.function, x, most));
    }
    value = of_block(by, value);
    switch (a.function) {
        case REDUCE_MEAN: return value / (N)a.reduced;
        case REDUCE_L2: return root_of(value);
        case REDUCE_LOG_SUM: return logarithm_of(value);
        case REDUCE_LOG_SUM_EXP: return most + logarithm_of(value);
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
        if (is_float(a.element)) {
            float value = reduced<float>(a, start);
            if (threadIdx.x == 0) write_float(a.element, a.y, i, value);
            continue;
        }
        i64 value = 0;
        if (is_of_floats(a.function)) {
            value = (i64)reduced<double>(a, start);
        } else if (threadIdx.x == 0) {
            value = reduced_whole(a, start);
        }
        if (threadIdx.x == 0) {
            if (a.element == ELEMENT_I64) ((i64*)a.y)[i] = value;
            else ((int*)a.y)[i] = (int)value;
        }
    }
}

// The most elements of a row that a warp keeps in its registers: 32 a lane.
#define WARP_ROW 1024
#define A_LANE 32

// Returns the next row of a warp, or of a block where rows are too long for a warp.
__device__ static u64 first_row(bool by_warp) {
    return by_warp ? (u64)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES : blockIdx.x;
}

__device__ static u64 all_rows(bool by_warp) {
    return by_warp ? (u64)gridDim.x * (THREADS / LANES) : gridDim.x;
}

// A row that a warp reads once and keeps: where its size is a multiple of 8, as many neighbours at a
// time.
template <bool BY_EIGHT>
struct WarpRow {
    float x[A_LANE];

    // Returns which element of the row a lane has.
    __device__ static u32 place(u32 i) {
        u32 lane = threadIdx.x % LANES;
        return BY_EIGHT ? i / EACH_TIME * (LANES * EACH_TIME) + lane * EACH_TIME + i % EACH_TIME : i * LANES + lane;
    }

    __device__ void load(u32 element, u64 of, u64 first, u64 size, float none) {
#pragma unroll
        for (u32 i = 0; i < A_LANE; i += EACH_TIME) {
            Eight eight = {{none, none, none, none, none, none, none, none}};
            if (BY_EIGHT && place(i) < size) eight = eight_at(element, of, first + place(i));
#pragma unroll
            for (u32 at = 0; at < EACH_TIME; ++at) {
                if (!BY_EIGHT && place(i + at) < size) eight.x[at] = float_at(element, of, first + place(i + at));
                x[i + at] = eight.x[at];
            }
        }
    }

    __device__ void write(u32 element, u64 to, u64 first, u64 size) const {
#pragma unroll
        for (u32 i = 0; i < A_LANE; i += EACH_TIME) {
            Eight eight;
#pragma unroll
            for (u32 at = 0; at < EACH_TIME; ++at) {
                eight.x[at] = x[i + at];
                if (!BY_EIGHT && place(i + at) < size) write_float(element, to, first + place(i + at), x[i + at]);
            }
            if (BY_EIGHT && place(i) < size) write_eight(element, to, first + place(i), eight);
        }
    }
};

template <bool BY_EIGHT>
__device__ static void softmax_of_warp(const SoftmaxArguments& a, u64 first) {
    WarpRow<BY_EIGHT> row;
    row.load(a.element, a.x, first, a.size, -INFINITE);
    float most = -INFINITE, sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < A_LANE; ++i) most = fmaxf(most, row.x[i]);
    most = of_warp(BY_MAX, most);
#pragma unroll
    for (u32 i = 0; i < A_LANE; ++i) {
        row.x[i] -= most;
        sum += row.place(i) < a.size ? expf(row.x[i]) : 0.0f;
    }
    sum = of_warp(BY_SUM, sum);
    float logarithm = logf(sum);
#pragma unroll
    for (u32 i = 0; i < A_LANE; ++i) {
        if (row.place(i) < a.size) row.x[i] = a.logarithm ? row.x[i] - logarithm : expf(row.x[i]) / sum;
    }
    row.write(a.element, a.y, first, a.size);
}

__device__ static void softmax_of_block(const SoftmaxArguments& a, u64 first) {
    float most = -INFINITE, sum = 0.0f;
    for (u64 at = threadIdx.x; at < a.size; at += THREADS) {
        most = fmaxf(most, float_at(a.element, a.x, first + at * a.inner));
    }
    most = of_block(BY_MAX, most);
    for (u64 at = threadIdx.x; at < a.size; at += THREADS) {
        sum += expf(float_at(a.element, a.x, first + at * a.inner) - most);
    }
    sum = of_block(BY_SUM, sum);
    for (u64 at = threadIdx.x; at < a.size; at += THREADS) {
        float over = float_at(a.element, a.x, first + at * a.inner) - most;
        write_float(a.element, a.y, first + at * a.inner, a.logarithm ? over - logf(sum) : expf(over) / sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) softmax(SoftmaxArguments a) {
    bool by_warp = a.inner == 1 && a.size <= WARP_ROW;
    for (u64 i = first_row(by_warp); i < a.outer * a.inner; i += all_rows(by_warp)) {
        u64 before = quotient_of(i, a.inner), first = before * a.size * a.inner + (i - before * a.inner);
        if (by_warp && a.size % EACH_TIME == 0) softmax_of_warp<true>(a, first);
        else if (by_warp) softmax_of_warp<false>(a, first);
        else softmax_of_block(a, first);
    }
}

// Rows of pieces of 8 that half a block has together, with nothing that follows: each thread keeps
// one piece.
#define HALF_BLOCK (THREADS / 2)

__device__ static void layer_norm_of_pieces(const LayerNormArguments& a) {
    constexpr u32 WARPS = HALF_BLOCK / LANES;
    // The two sums of a row have a place each, so that one wait for each is enough.
    __shared__ float values[2][THREADS / LANES];
    u64 half = threadIdx.x / HALF_BLOCK, at = threadIdx.x % HALF_BLOCK * EACH_TIME;
    bool has_piece = at < a.size;
    Eight scale = {}, bias = {};
    if (has_piece) scale = eight_at(a.element, a.scale, at);
    if (has_piece && a.bias) bias = eight_at(a.element, a.bias, at);
    for (u64 first = blockIdx.x * 2ull; first < a.rows; first += gridDim.x * 2ull) {
        bool is_there = has_piece && first + half < a.rows;
        u64 from = (first + half) * a.size + at;
        Eight x = {}, added = {};
        if (is_there) x = eight_at(a.element, a.x, from);
        if (is_there && a.added) added = eight_at(a.element, a.added, from);
        float sum = 0.0f, squares = 0.0f;
        for (int i = 0; i < EACH_TIME; ++i) {
            x.x[i] += added.x[i];
            sum += x.x[i];
        }
        float mean = of_warps<WARPS>(values[0], BY_SUM, sum) / (float)a.size;
        for (int i = 0; i < EACH_TIME; ++i) {
            x.x[i] -= mean;
            squares += has_piece ? x.x[i] * x.x[i] : 0.0f;
        }
        squares = of_warps<WARPS>(values[1], BY_SUM, squares);
        float factor = 1.0f / sqrtf(squares / (float)a.size + a.epsilon);
        for (int i = 0; i < EACH_TIME; ++i) x.x[i] = x.x[i] * factor * scale.x[i] + bias.x[i];
        if (is_there) write_eight(a.element, a.y, from, x);
    }
}

__device__ static float summed_at(const LayerNormArguments& a, u64 at) {
    return float_at(a.element, a.x, at) + (a.added ? float_at(a.element, a.added, at) : 0.0f);
}

__device__ static void layer_norm_of_block(const LayerNormArguments& a, u64 first) {
    float sum = 0.0f, squares = 0.0f;
    for (u64 at = threadIdx.x; at < a.size; at += THREADS) sum += summed_at(a, first + at);
    float mean = of_block(BY_SUM, sum) / (float)a.size;
    for (u64 at = threadIdx.x; at < a.size; at += THREADS) {
        float apart = summed_at(a, first + at) - mean;
        squares += apart * apart;
    }
    float factor = 1.0f / sqrtf(of_block(BY_SUM, squares) / (float)a.size + a.epsilon);
    for (u64 at = threadIdx.x; at < a.size; at += THREADS) {
        float normal = (summed_at(a, first + at) - mean) * factor;
        float bias = a.bias ? float_at(a.element, a.bias, at) : 0.0f;
        float y = normal * float_at(a.element, a.scale, at) + bias;
        write_float(a.element, a.y, first + at, activated(a.activation, y));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) layer_norm(LayerNormArguments a) {
    if (a.size <= HALF_BLOCK * EACH_TIME && a.size % EACH_TIME == 0 && a.activation.code == 0) {
        return layer_norm_of_pieces(a);
    }
    for (u64 row = blockIdx.x; row < a.rows; row += gridDim.x) layer_norm_of_block(a, row * a.size);
}
