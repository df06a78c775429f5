// Products of matrices, and convolutions as such products whose right matrix, the windows of the
// images side by side, is never stored. A block of 256 threads computes a square of 64 times 64
// results; each thread has 4 times 4 of them.

#define TILE 64
#define STEP 16
#define EACH 4

// A part of each matrix, as a block shares it.
struct Tiles {
    float left[STEP][TILE + 1];
    float right[STEP][TILE + 1];
};

// Adds the products of the parts to a thread's results.
__device__ static void add_products(const Tiles& tiles, float (&sums)[EACH][EACH]) {
    u32 row = threadIdx.x / STEP, column = threadIdx.x % STEP;
    for (int k = 0; k < STEP; ++k) {
        float left[EACH], right[EACH];
        for (int at = 0; at < EACH; ++at) {
            left[at] = tiles.left[k][row + at * STEP];
            right[at] = tiles.right[k][column + at * STEP];
        }
        for (int i = 0; i < EACH; ++i) {
            for (int j = 0; j < EACH; ++j) sums[i][j] += left[i] * right[j];
        }
    }
}

// Loads a part of a matrix: neighbouring threads read neighbours in memory, along the depth or across.
__device__ static void load_part(
    float (&part)[STEP][TILE + 1], const float* matrix, u64 first, u64 extent, u64 k, u64 depth, bool along_depth) {
    for (u32 at = threadIdx.x; at < TILE * STEP; at += THREADS) {
        u32 down = along_depth ? at % STEP : at / TILE, right = along_depth ? at / STEP : at % TILE;
        u64 by_depth = k + down, by_extent = first + right;
        u64 from = along_depth ? by_extent * depth + by_depth : by_depth * extent + by_extent;
        part[down][right] = by_depth < depth && by_extent < extent ? matrix[from] : 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) matrix_product(MatrixProductArguments a) {
    __shared__ Tiles tiles;
    u64 row_tiles = (a.rows + TILE - 1) / TILE, column_tiles = (a.columns + TILE - 1) / TILE;
    for (u64 batch = blockIdx.z; batch < a.batches; batch += gridDim.z)
    for (u64 row_tile = blockIdx.y; row_tile < row_tiles; row_tile += gridDim.y)
    for (u64 column_tile = blockIdx.x; column_tile < column_tiles; column_tile += gridDim.x) {
        const float* left =
            (const float*)a.left + place(batch, a.shape, a.left_strides) * (i64)(a.rows * a.depth);
        const float* right =
            (const float*)a.right + place(batch, a.shape, a.right_strides) * (i64)(a.depth * a.columns);
        u64 first_row = row_tile * TILE, first_column = column_tile * TILE;
        float sums[EACH][EACH] = {};
        for (u64 k = 0; k < a.depth; k += STEP) {
            load_part(tiles.left, left, first_row, a.rows, k, a.depth, !a.left_transposed);
            load_part(tiles.right, right, first_column, a.columns, k, a.depth, a.right_transposed);
            __syncthreads();
            add_products(tiles, sums);
            __syncthreads();
        }
        float* y = (float*)a.y + batch * a.rows * a.columns;
        for (int i = 0; i < EACH; ++i) {
            for (int j = 0; j < EACH; ++j) {
                u64 row = first_row + threadIdx.x / STEP + i * STEP;
                u64 column = first_column + threadIdx.x % STEP + j * STEP;
                if (row < a.rows && column < a.columns) {
                    float bias = a.bias ? ((const float*)a.bias)[column] : 0.0f;
                    y[row * a.columns + column] = activated(a.activation, a.alpha * sums[i][j] + bias);
                }
            }
        }
    }
}

// Returns the element of an image that a window's element reads; 0 around the image.
__device__ static float tap(
    const ConvolutionArguments& a, u64 image, u32 channel, u32 out_y, u32 out_x, u32 tap_y, u32 tap_x) {
    i64 y = (i64)out_y * a.stride_h + (i64)tap_y * a.dilation_h - a.pad_top;
    i64 x = (i64)out_x * a.stride_w + (i64)tap_x * a.dilation_w - a.pad_left;
    if (y < 0 || x < 0 || y >= a.h || x >= a.w) return 0.0f;
    u64 at = a.channels_last ? ((image * a.h + (u64)y) * a.w + (u64)x) * a.c + channel
                             : ((image * a.c + channel) * a.h + (u64)y) * a.w + (u64)x;
    return float_at(a.element, a.x, at);
}

__device__ static void write_pixel(const ConvolutionArguments& a, u64 at, u32 channel, float sum) {
    float bias = a.bias ? float_at(a.element, a.bias, channel) : 0.0f;
    write_float(a.element, a.y, at, activated(a.activation, sum + bias));
}

extern "C" __global__ void __launch_bounds__(THREADS) convolution(ConvolutionArguments a) {
    __shared__ Tiles tiles;
    u32 of_group = a.m / a.groups, taps = a.kernel_h * a.kernel_w;
    u64 depth = (u64)a.depth * taps, pixels = (u64)a.out_h * a.out_w, all = pixels * a.n;
    u64 channel_tiles = (of_group + TILE - 1) / TILE, pixel_tiles = (all + TILE - 1) / TILE;
    for (u32 group = blockIdx.z; group < a.groups; group += gridDim.z)
    for (u64 channel_tile = blockIdx.y; channel_tile < channel_tiles; channel_tile += gridDim.y)
    for (u64 pixel_tile = blockIdx.x; pixel_tile < pixel_tiles; pixel_tile += gridDim.x) {
        const float* weights = (const float*)a.weights + (u64)group * of_group * depth;
        u64 first_channel = channel_tile * TILE, first_pixel = pixel_tile * TILE;
        float sums[EACH][EACH] = {};
        for (u64 k = 0; k < depth; k += STEP) {
            load_part(tiles.left, weights, first_channel, of_group, k, depth, true);
            for (u32 at = threadIdx.x; at < TILE * STEP; at += THREADS) {
                u64 element = k + at / TILE, pixel = first_pixel + at % TILE;
                float read = 0.0f;
                if (element < depth && pixel < all) {
                    u64 image = quotient_of(pixel, pixels);
                    u32 of_image = (u32)(pixel - image * pixels), of_kernel = (u32)element % taps;
                    u32 channel = group * a.depth + (u32)element / taps;
                    read = tap(a, image, channel, of_image / a.out_w, of_image % a.out_w,
                               of_kernel / a.kernel_w, of_kernel % a.kernel_w);
                }
                tiles.right[at / TILE][at % TILE] = read;
            }
            __syncthreads();
            add_products(tiles, sums);
            __syncthreads();
        }
        for (int i = 0; i < EACH; ++i) {
            for (int j = 0; j < EACH; ++j) {
                u64 channel = first_channel + threadIdx.x / STEP + i * STEP;
                u64 pixel = first_pixel + threadIdx.x % STEP + j * STEP;
                if (channel < of_group && pixel < all) {
                    u32 of_all = group * of_group + (u32)channel;
                    u64 at = (pixel / pixels * a.m + of_all) * pixels + pixel % pixels;
                    write_pixel(a, at, of_all, sums[i][j]);
                }
            }
        }
    }
}

// Any convolution, of any layout and precision: a thread for each result.
extern "C" __global__ void convolution_directly(ConvolutionArguments a) {
    u32 of_group = a.m / a.groups, taps = a.kernel_h * a.kernel_w;
    u64 pixels = (u64)a.out_h * a.out_w, count = pixels * a.n * a.m;
    for (u64 i = first_of_thread(); i < count; i += all_threads()) {
        u64 before = quotient_of(i, a.channels_last ? a.m : pixels);
        u64 behind = i - before * (a.channels_last ? a.m : pixels);
        u64 image = quotient_of(before, a.channels_last ? pixels : a.m);
        u64 rest = before - image * (a.channels_last ? pixels : a.m);
        u32 pixel = (u32)(a.channels_last ? rest : behind), channel = (u32)(a.channels_last ? behind : rest);
        u32 group = channel / of_group;
        u64 weights = (u64)channel * a.depth * taps;
        float sum = 0.0f;
        for (u32 c = 0; c < a.depth; ++c) {
            for (u32 at = 0; at < taps; ++at) {
                u64 of = weights + (a.channels_last ? (u64)at * a.depth + c : (u64)c * taps + at);
                float read = tap(a, image, group * a.depth + c, pixel / a.out_w, pixel % a.out_w,
                                 at / a.kernel_w, at % a.kernel_w);
                sum += float_at(a.element, a.weights, of) * read;
            }
        }
        write_pixel(a, i, channel, sum);
    }
}
