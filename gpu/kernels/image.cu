// Kernels on images: pools, other sizes, and norms across channels.

// What a window covers along one dimension: the elements in the image, and with those around it.
struct Reach {
    u32 inside;
    u32 with_pads;
};

__device__ static Reach reach(i64 start, u32 size, u32 dilation, u32 pad, u32 pad_behind, u32 length) {
    Reach found = {0, 0};
    for (u32 tap = 0; tap < size; ++tap) {
        i64 at = start + (i64)tap * dilation;
        found.inside += at >= pad && at < (i64)pad + length;
        found.with_pads += at < (i64)pad + length + pad_behind;
    }
    return found;
}

extern "C" __global__ void pool(PoolArguments a) {
    u64 pixels = (u64)a.out_h * a.out_w, count = a.planes * pixels;
    for (u64 i = first_of_thread(); i < count; i += all_threads()) {
        const float* plane = (const float*)a.x + i / pixels * a.h * a.w;
        u32 pixel = (u32)(i % pixels);
        i64 start_y = (i64)(pixel / a.out_w) * a.stride_h, start_x = (i64)(pixel % a.out_w) * a.stride_w;
        float most = -INFINITE, sum = 0.0f;
        for (u32 tap_y = 0; tap_y < a.size_h; ++tap_y) {
            i64 y = start_y + (i64)tap_y * a.dilation_h - a.pad_top;
            if (y < 0 || y >= a.h) continue;
            for (u32 tap_x = 0; tap_x < a.size_w; ++tap_x) {
                i64 x = start_x + (i64)tap_x * a.dilation_w - a.pad_left;
                if (x < 0 || x >= a.w) continue;
                float value = plane[(u64)y * a.w + (u64)x];
                most = fmaxf(most, value);
                sum += value;
            }
        }
        Reach down = reach(start_y, a.size_h, a.dilation_h, a.pad_top, a.pad_bottom, a.h);
        Reach right = reach(start_x, a.size_w, a.dilation_w, a.pad_left, a.pad_right, a.w);
        float result = a.function == POOL_MAX    ? most
                       : a.function == POOL_MEAN ? sum / (float)(down.inside * right.inside)
                                                 : sum / (float)(down.with_pads * right.with_pads);
        ((float*)a.y)[i] = result;
    }
}

__device__ static float coordinate(u32 at, u32 length, u32 created, float scale, u32 coordinates) {
    switch (coordinates) {
        case COORDINATES_PYTORCH_HALF_PIXEL:
            return created > 1 ? ((float)at + 0.5f) / scale - 0.5f : 0.0f;
        case COORDINATES_ALIGN_CORNERS:
            return created > 1 ? (float)at * (float)(length - 1) / (float)(created - 1) : 0.0f;
        case COORDINATES_ASYMMETRIC: return (float)at / scale;
        default: return ((float)at + 0.5f) / scale - 0.5f;
    }
}

// Where a resized element is read: between two neighbours, with the weight of the one above.
struct Between {
    u32 below;
    u32 above;
    float weight;
};

__device__ static Between nearest(float x, u32 last) {
    float found = fminf(fmaxf(x, 0.0f), (float)last);
    u32 at = (u32)found < last ? (u32)found : last;
    return {at, at, 0.0f};
}

__device__ static Between between(float x, u32 length, u32 interpolation) {
    u32 last = length - 1;
    switch (interpolation) {
        case RESIZE_NEAREST_DOWN: return nearest(ceilf(x - 0.5f), last);
        case RESIZE_NEAREST_UP: return nearest(floorf(x + 0.5f), last);
        case RESIZE_FLOOR: return nearest(floorf(x), last);
        case RESIZE_CEIL: return nearest(ceilf(x), last);
        default: {
            float inside = fminf(fmaxf(x, 0.0f), (float)last);
            u32 below = (u32)inside < last ? (u32)inside : last;
            return {below, below + 1 < last ? below + 1 : last, inside - (float)below};
        }
    }
}

// The weighted mean of two numbers; one without weight may be infinite.
__device__ static float mixed(float below, float above, float weight) {
    return weight == 0.0f ? below : below * (1.0f - weight) + above * weight;
}

extern "C" __global__ void resize(ResizeArguments a) {
    u64 pixels = (u64)a.out_h * a.out_w, count = a.planes * pixels;
    for (u64 i = first_of_thread(); i < count; i += all_threads()) {
        const float* plane = (const float*)a.x + i / pixels * a.h * a.w;
        u32 out_y = (u32)(i % pixels / a.out_w), out_x = (u32)(i % a.out_w);
        Between y = between(coordinate(out_y, a.h, a.out_h, a.scale_h, a.coordinates), a.h, a.interpolation);
        Between x = between(coordinate(out_x, a.w, a.out_w, a.scale_w, a.coordinates), a.w, a.interpolation);
        const float* below = plane + (u64)y.below * a.w;
        const float* above = plane + (u64)y.above * a.w;
        ((float*)a.y)[i] = mixed(mixed(below[x.below], below[x.above], x.weight),
                                 mixed(above[x.below], above[x.above], x.weight), y.weight);
    }
}

extern "C" __global__ void local_response_norm(LocalResponseNormArguments a) {
    u64 count = a.outer * a.channels * a.inner;
    const float* x = (const float*)a.x;
    for (u64 i = first_of_thread(); i < count; i += all_threads()) {
        u64 channel = i / a.inner % a.channels, first = i - channel * a.inner;
        u64 before = (a.size - 1) / 2, behind = a.size / 2;
        u64 from = channel > before ? channel - before : 0;
        u64 to = channel + behind < a.channels ? channel + behind : a.channels - 1;
        float sum = 0.0f;
        for (u64 near = from; near <= to; ++near) {
            float value = x[first + near * a.inner];
            sum += value * value;
        }
        ((float*)a.y)[i] = x[i] / powf(a.bias + a.alpha / (float)a.size * sum, a.beta);
    }
}
