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

// Where an image's element lies, in elements.
__device__ static u64 pixel_place(u64 n, u64 c, u64 y, u64 x, u64 channels, u64 h, u64 w, u32 channels_last) {
    return channels_last ? ((n * h + y) * w + x) * channels + c : ((n * channels + c) * h + y) * w + x;
}

// The indices of an image's element.
struct PixelIndex {
    u64 n, c;
    u32 y, x;
};

__device__ static PixelIndex pixel_index(u64 i, u64 channels, u32 h, u32 w, u32 channels_last) {
    u64 pixels = (u64)h * w, before = quotient_of(i, channels_last ? channels : pixels);
    u64 rest = i - before * (channels_last ? channels : pixels);
    u64 n = quotient_of(before, channels_last ? pixels : channels);
    u64 other = before - n * (channels_last ? pixels : channels);
    u32 pixel = (u32)(channels_last ? other : rest);
    return {n, channels_last ? rest : other, pixel / w, pixel % w};
}

// Pools so many neighbouring channels at a time: 1, or 8 where they come last.
template <u32 CHANNELS>
__device__ static void pools(const PoolArguments& a) {
    u64 count = a.images * a.channels * a.out_h * a.out_w;
    for (u64 i = first_of_thread() * CHANNELS; i < count; i += all_threads() * CHANNELS) {
        PixelIndex out = pixel_index(i, a.channels, a.out_h, a.out_w, a.channels_last);
        i64 start_y = (i64)out.y * a.stride_h, start_x = (i64)out.x * a.stride_w;
        bool is_max = a.function == POOL_MAX;
        Eight found;
        for (u32 at = 0; at < CHANNELS; ++at) found.x[at] = is_max ? -INFINITE : 0.0f;
        for (u32 tap_y = 0; tap_y < a.size_h; ++tap_y) {
            i64 y = start_y + (i64)tap_y * a.dilation_h - a.pad_top;
            if (y < 0 || y >= a.h) continue;
            for (u32 tap_x = 0; tap_x < a.size_w; ++tap_x) {
                i64 x = start_x + (i64)tap_x * a.dilation_w - a.pad_left;
                if (x < 0 || x >= a.w) continue;
                u64 from = pixel_place(out.n, out.c, y, x, a.channels, a.h, a.w, a.channels_last);
                Eight value;
                if (CHANNELS > 1) value = eight_at(a.element, a.x, from);
                else value.x[0] = float_at(a.element, a.x, from);
                for (u32 at = 0; at < CHANNELS; ++at) {
                    found.x[at] = is_max ? fmaxf(found.x[at], value.x[at]) : found.x[at] + value.x[at];
                }
            }
        }
        Reach down = reach(start_y, a.size_h, a.dilation_h, a.pad_top, a.pad_bottom, a.h);
        Reach right = reach(start_x, a.size_w, a.dilation_w, a.pad_left, a.pad_right, a.w);
        float divisor = is_max                     ? 1.0f
                        : a.function == POOL_MEAN ? (float)(down.inside * right.inside)
                                                  : (float)(down.with_pads * right.with_pads);
        for (u32 at = 0; at < CHANNELS; ++at) found.x[at] /= divisor;
        if (CHANNELS > 1) write_eight(a.element, a.y, i, found);
        else write_float(a.element, a.y, i, found.x[0]);
    }
}

extern "C" __global__ void pool(PoolArguments a) {
    if (a.channels_last && a.channels % EACH_TIME == 0) pools<EACH_TIME>(a);
    else pools<1>(a);
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
    u64 count = a.images * a.channels * a.out_h * a.out_w;
    for (u64 i = first_of_thread(); i < count; i += all_threads()) {
        PixelIndex out = pixel_index(i, a.channels, a.out_h, a.out_w, a.channels_last);
        Between y = between(coordinate(out.y, a.h, a.out_h, a.scale_h, a.coordinates), a.h, a.interpolation);
        Between x = between(coordinate(out.x, a.w, a.out_w, a.scale_w, a.coordinates), a.w, a.interpolation);
        u64 rows[2] = {y.below, y.above}, columns[2] = {x.below, x.above};
        float values[2][2];
        for (int row = 0; row < 2; ++row) {
            for (int column = 0; column < 2; ++column) {
                u64 from = pixel_place(out.n, out.c, rows[row], columns[column], a.channels, a.h, a.w,
                                       a.channels_last);
                values[row][column] = float_at(a.element, a.x, from);
            }
        }
        write_float(a.element, a.y, i,
                    mixed(mixed(values[0][0], values[0][1], x.weight),
                          mixed(values[1][0], values[1][1], x.weight), y.weight));
    }
}

extern "C" __global__ void local_response_norm(LocalResponseNormArguments a) {
    u64 count = a.outer * a.channels * a.inner;
    for (u64 i = first_of_thread(); i < count; i += all_threads()) {
        u64 channel = i / a.inner % a.channels, first = i - channel * a.inner;
        u64 before = (a.size - 1) / 2, behind = a.size / 2;
        u64 from = channel > before ? channel - before : 0;
        u64 to = channel + behind < a.channels ? channel + behind : a.channels - 1;
        float sum = 0.0f;
        for (u64 near = from; near <= to; ++near) {
            float value = float_at(a.element, a.x, first + near * a.inner);
            sum += value * value;
        }
        float divisor = powf(a.bias + a.alpha / (float)a.size * sum, a.beta);
        write_float(a.element, a.y, i, float_at(a.element, a.x, i) / divisor);
    }
}
