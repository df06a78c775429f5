// Products of matrices of halves, and convolutions as such products, by tensor cores. A block of 8
// warps computes a square of results. Three stages of both matrices lie in shared memory: while one is
// multiplied, the next two are copied, 16 bytes a thread at a time. Sums are of single precision.

#define DEPTH_STEP 32
#define STAGES 3

// Returns the place, in halves, of a chunk of 8 halves in a tile of shared memory. A tile has EXTENT
// rows along the depth, or the rows of DEPTH_STEP along the extent. Chunks are exchanged within a row
// such that 8 rows of a chunk lie in different banks.
template <int EXTENT>
__device__ static u32 chunk_place(bool along_depth, u32 row, u32 chunk) {
    if (along_depth) return row * DEPTH_STEP + (chunk ^ (row / 2 % 4)) * 8;
    return row * EXTENT + (chunk ^ (row % 8)) * 8;
}

// Copies a chunk of which `valid` halves are there; the rest becomes 0. `whole` says that the memory
// has whole chunks only.
__device__ static void load_chunk(u16* to, const u16* from, u64 valid, bool whole) {
    if (whole) return copy_async(to, from, valid > 0);
    Piece piece = {};
    for (u32 at = 0; at < 8 && at < valid; ++at) piece.words[at / 2] |= (u32)from[at] << (at % 2 * 16);
    *(Piece*)to = piece;
}

// A matrix in memory, of which tiles are read.
template <int EXTENT>
struct MatrixSource {
    const u16* base;
    u64 extent, depth, first;
    bool along_depth, whole;

    __device__ void load(u16* tile, u64 from) const {
        u32 across = along_depth ? DEPTH_STEP / 8 : EXTENT / 8;
        u64 rows = along_depth ? extent : depth, columns = along_depth ? depth : extent;
        for (u32 at = threadIdx.x; at < EXTENT * DEPTH_STEP / 8; at += THREADS) {
            u32 row = at / across, chunk = at % across;
            u64 down = (along_depth ? first : from) + row, right = (along_depth ? from : first) + chunk * 8;
            u64 valid = down < rows && right < columns ? columns - right : 0;
            const u16* place = valid > 0 ? base + down * columns + right : base;
            load_chunk(tile + chunk_place<EXTENT>(along_depth, row, chunk), place, valid, whole);
        }
    }
};

template <int EXTENT>
__device__ static MatrixSource<EXTENT> matrix_source(const u16* base, u64 extent, u64 depth, bool along_depth) {
    u64 columns = along_depth ? depth : extent;
    return {base, extent, depth, 0, along_depth, columns % 8 == 0 && (u64)base % 16 == 0};
}

// The windows of images as a matrix: a row for each pixel of the output, along the depth the window's
// elements with their channels. Each thread has the same rows all the time.
template <int EXTENT>
struct WindowSource {
    static constexpr bool along_depth = true;
    static constexpr int ROWS = EXTENT * DEPTH_STEP / 8 / THREADS;
    const u16* images[ROWS];
    int y[ROWS], x[ROWS];
    bool whole;
    const ConvolutionArguments* a;

    __device__ void start(const ConvolutionArguments& arguments, u32 group, u64 first) {
        a = &arguments;
        whole = a->depth % 8 == 0 && a->c % 8 == 0;
        u64 pixels = (u64)a->out_h * a->out_w;
        for (int at = 0; at < ROWS; ++at) {
            u64 pixel = first + threadIdx.x / 4 + at * (THREADS / 4), image = quotient_of(pixel, pixels);
            u32 rest = (u32)(pixel - image * pixels);
            images[at] = image < a->n
                             ? (const u16*)a->x + image * a->h * a->w * a->c + (u64)group * a->depth
                             : nullptr;
            y[at] = (int)(rest / a->out_w * a->stride_h) - (int)a->pad_top;
            x[at] = (int)(rest % a->out_w * a->stride_w) - (int)a->pad_left;
        }
    }

    // Returns the address of a window's element; null outside of the image.
    __device__ const u16* element(int at, u32 of_window) const {
        u32 tap = of_window / a->depth, channel = of_window - tap * a->depth, tap_y = tap / a->kernel_w;
        int down = y[at] + (int)(tap_y * a->dilation_h);
        int right = x[at] + (int)((tap - tap_y * a->kernel_w) * a->dilation_w);
        bool inside = images[at] && down >= 0 && right >= 0 && down < (int)a->h && right < (int)a->w;
        return inside ? images[at] + ((u64)down * a->w + (u64)right) * a->c + channel : nullptr;
    }

    __device__ void load(u16* tile, u64 from) const {
        u32 chunk = threadIdx.x % 4, all = a->depth * a->kernel_h * a->kernel_w;
        u32 first = (u32)from + chunk * 8;
        for (int at = 0; at < ROWS; ++at) {
            u16* to = tile + chunk_place<EXTENT>(true, threadIdx.x / 4 + at * (THREADS / 4), chunk);
            if (whole) {
                const u16* found = first < all ? element(at, first) : nullptr;
                copy_async(to, found ? found : (const u16*)a->x, found != nullptr);
                continue;
            }
            Piece piece = {};
            for (u32 of = 0; of < 8 && first + of < all; ++of) {
                const u16* found = element(at, first + of);
                if (found) piece.words[of / 2] |= (u32)*found << (of % 2 * 16);
            }
            *(Piece*)to = piece;
        }
    }
};

// Loads 16 by 16 halves of a tile as four matrices: those of the left factor lie along the extent
// first, those of the right one along the depth.
template <int EXTENT>
__device__ static void load_fragment(
    u32 (&to)[4], const u16* tile, bool along_depth, u32 extent, u32 depth, bool is_left) {
    u32 lane = threadIdx.x % LANES, matrix = lane / 8;
    u32 by_extent = is_left ? matrix % 2 : matrix / 2, by_depth = is_left ? matrix / 2 : matrix % 2;
    if (along_depth) {
        u32 row = extent + by_extent * 8 + lane % 8;
        load_matrices(to, tile + chunk_place<EXTENT>(true, row, depth / 8 + by_depth));
    } else {
        u32 row = depth + by_depth * 8 + lane % 8;
        load_matrices_transposed(to, tile + chunk_place<EXTENT>(false, row, extent / 8 + by_extent));
    }
}

// The results of a thread: its warp has two rows and four columns of warps beside it, and in each
// fragment of 16 by 8 a thread has two neighbours in two rows.
template <int EXTENT>
struct Sums {
    static constexpr int DOWN = EXTENT / 32, RIGHT = EXTENT / 32;
    float of[DOWN][RIGHT][4];
};

template <bool BF16, int EXTENT>
__device__ static void multiply_tiles(
    Sums<EXTENT>& sums, const u16* left, const u16* right, bool left_along, bool right_along) {
    constexpr int DOWN = Sums<EXTENT>::DOWN, RIGHT = Sums<EXTENT>::RIGHT;
    u32 warp = threadIdx.x / LANES, first_row = warp / 4 * DOWN * 16, first_column = warp % 4 * RIGHT * 8;
#pragma unroll
    for (u32 depth = 0; depth < DEPTH_STEP; depth += 16) {
        u32 rows[DOWN][4];
#pragma unroll
        for (int i = 0; i < DOWN; ++i) {
            load_fragment<EXTENT>(rows[i], left, left_along, first_row + i * 16, depth, true);
        }
#pragma unroll
        for (int j = 0; j < RIGHT; j += 2) {
            u32 columns[4];
            load_fragment<EXTENT>(columns, right, right_along, first_column + j * 8, depth, false);
#pragma unroll
            for (int i = 0; i < DOWN; ++i) {
                add_product<BF16>(sums.of[i][j], rows[i], columns[0], columns[1]);
                add_product<BF16>(sums.of[i][j + 1], rows[i], columns[2], columns[3]);
            }
        }
    }
}

// The tiles that a block shares.
template <int EXTENT>
struct StagedTiles {
    alignas(16) u16 left[STAGES][EXTENT * DEPTH_STEP];
    alignas(16) u16 right[STAGES][EXTENT * DEPTH_STEP];
};

template <bool BF16, int EXTENT, typename Left>
__device__ static void sum_products(
    Sums<EXTENT>& sums, StagedTiles<EXTENT>& tiles, const Left& left, const MatrixSource<EXTENT>& right) {
    u64 steps = (right.depth + DEPTH_STEP - 1) / DEPTH_STEP;
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < steps) {
            left.load(tiles.left[stage], (u64)stage * DEPTH_STEP);
            right.load(tiles.right[stage], (u64)stage * DEPTH_STEP);
        }
        commit_async();
    }
    for (u64 step = 0; step < steps; ++step) {
        wait_async<STAGES - 2>();
        __syncthreads();
        u64 next = step + STAGES - 1;
        if (next < steps) {
            left.load(tiles.left[next % STAGES], next * DEPTH_STEP);
            right.load(tiles.right[next % STAGES], next * DEPTH_STEP);
        }
        commit_async();
        u32 stage = (u32)(step % STAGES);
        multiply_tiles<BF16, EXTENT>(
            sums, tiles.left[stage], tiles.right[stage], left.along_depth, right.along_depth);
    }
    // The next square of the block writes where this one was read.
    wait_async<0>();
    __syncthreads();
}

// Where results are written.
struct ResultPlace {
    u16* y;
    // The distance of two rows.
    u64 lead;
    u64 rows, columns, first_row, first_column;
    const u16* bias;
    float alpha;
};

// Rounds two floats to neighbours.
template <bool BF16>
__device__ static u32 rounded(float x, float y) {
    return BF16 ? to_bf16_pair(x, y) : to_f16_pair(x, y);
}

template <bool BF16>
__device__ static float widened(u16 bits) {
    return BF16 ? of_bf16(bits) : of_f16(bits);
}

template <bool BF16, int EXTENT>
__device__ static void write_sums(const Sums<EXTENT>& sums, const ResultPlace& to, const FunctionCode& activation) {
    constexpr int DOWN = Sums<EXTENT>::DOWN, RIGHT = Sums<EXTENT>::RIGHT;
    u32 warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    u64 first_row = to.first_row + warp / 4 * DOWN * 16 + lane / 4;
    u64 first_column = to.first_column + warp % 4 * RIGHT * 8 + lane % 4 * 2;
    bool in_pairs = to.lead % 2 == 0 && (u64)to.y % 4 == 0;
#pragma unroll
    for (int j = 0; j < RIGHT; ++j) {
        u64 column = first_column + j * 8;
        float bias[2] = {};
        for (int at = 0; at < 2; ++at) {
            if (to.bias && column + at < to.columns) bias[at] = widened<BF16>(to.bias[column + at]);
        }
#pragma unroll
        for (int i = 0; i < 2 * DOWN; ++i) {
            u64 row = first_row + i * 8;
            if (row >= to.rows || column >= to.columns) continue;
            float results[2];
            for (int at = 0; at < 2; ++at) {
                results[at] = activated(activation, to.alpha * sums.of[i / 2][j][i % 2 * 2 + at] + bias[at]);
            }
            u32 pair = rounded<BF16>(results[0], results[1]);
            u16* place = to.y + row * to.lead + column;
            if (in_pairs && column + 1 < to.columns) {
                *(u32*)place = pair;
            } else {
                place[0] = (u16)pair;
                if (column + 1 < to.columns) place[1] = (u16)(pair >> 16);
            }
        }
    }
}

template <bool BF16, int EXTENT>
__device__ static void products_of_halves(const MatrixProductArguments& a) {
    __shared__ StagedTiles<EXTENT> tiles;
    u64 row_tiles = (a.rows + EXTENT - 1) / EXTENT, column_tiles = (a.columns + EXTENT - 1) / EXTENT;
    for (u64 batch = blockIdx.z; batch < a.batches; batch += gridDim.z)
    for (u64 row_tile = blockIdx.y; row_tile < row_tiles; row_tile += gridDim.y)
    for (u64 column_tile = blockIdx.x; column_tile < column_tiles; column_tile += gridDim.x) {
        const u16* left =
            (const u16*)a.left + place(batch, a.shape, a.left_strides) * (i64)(a.rows * a.depth);
        const u16* right =
            (const u16*)a.right + place(batch, a.shape, a.right_strides) * (i64)(a.depth * a.columns);
        MatrixSource<EXTENT> rows = matrix_source<EXTENT>(left, a.rows, a.depth, !a.left_transposed);
        MatrixSource<EXTENT> columns = matrix_source<EXTENT>(right, a.columns, a.depth, a.right_transposed);
        rows.first = row_tile * EXTENT;
        columns.first = column_tile * EXTENT;
        Sums<EXTENT> sums = {};
        sum_products<BF16, EXTENT>(sums, tiles, rows, columns);
        u16* y = (u16*)a.y + batch * a.rows * a.columns;
        ResultPlace to = {y, a.columns, a.rows, a.columns, rows.first, columns.first, (const u16*)a.bias, a.alpha};
        write_sums<BF16, EXTENT>(sums, to, a.activation);
    }
}

template <bool BF16, int EXTENT>
__device__ static void convolution_of_halves(const ConvolutionArguments& a) {
    __shared__ StagedTiles<EXTENT> tiles;
    u32 of_group = a.m / a.groups;
    u64 depth = (u64)a.depth * a.kernel_h * a.kernel_w, pixels = (u64)a.out_h * a.out_w * a.n;
    u64 pixel_tiles = (pixels + EXTENT - 1) / EXTENT, channel_tiles = (of_group + EXTENT - 1) / EXTENT;
    for (u32 group = blockIdx.z; group < a.groups; group += gridDim.z)
    for (u64 channel_tile = blockIdx.y; channel_tile < channel_tiles; channel_tile += gridDim.y)
    for (u64 pixel_tile = blockIdx.x; pixel_tile < pixel_tiles; pixel_tile += gridDim.x) {
        const u16* weights = (const u16*)a.weights + (u64)group * of_group * depth;
        MatrixSource<EXTENT> columns = matrix_source<EXTENT>(weights, of_group, depth, true);
        columns.first = channel_tile * EXTENT;
        WindowSource<EXTENT> rows;
        rows.start(a, group, pixel_tile * EXTENT);
        Sums<EXTENT> sums = {};
        sum_products<BF16, EXTENT>(sums, tiles, rows, columns);
        u64 first = (u64)group * of_group;
        const u16* bias = a.bias ? (const u16*)a.bias + first : nullptr;
        ResultPlace to = {(u16*)a.y + first, a.m, pixels, of_group, pixel_tile * EXTENT, columns.first, bias, 1.0f};
        write_sums<BF16, EXTENT>(sums, to, a.activation);
    }
}

#define OF_HALVES(PRODUCT, CONVOLUTION, BF16, EXTENT)                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) PRODUCT(MatrixProductArguments a) {  \
        products_of_halves<BF16, EXTENT>(a);                                                      \
    }                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) CONVOLUTION(ConvolutionArguments a) { \
        convolution_of_halves<BF16, EXTENT>(a);                                                   \
    }

#ifdef WITH_F16
OF_HALVES(matrix_product_f16_64, convolution_f16_64, false, 64)
OF_HALVES(matrix_product_f16_128, convolution_f16_128, false, 128)
#endif
#ifdef WITH_BF16
OF_HALVES(matrix_product_bf16_64, convolution_bf16_64, true, 64)
OF_HALVES(matrix_product_bf16_128, convolution_bf16_128, true, 128)
#endif

// Images with fewer pieces of eight channels are computed pixel by pixel, by more threads.
#define MANY_PIECES (1ull << 18)

// Computes eight channels of WIDE neighbouring pixels: their weights are read once.
template <int WIDE>
__device__ static void channels_by_depth(const ConvolutionArguments& a) {
    u32 taps = a.kernel_h * a.kernel_w, pieces = a.c / EACH_TIME, strips = (a.out_w + WIDE - 1) / WIDE;
    u64 count = (u64)a.n * a.out_h * strips * pieces;
    for (u64 i = first_of_thread(); i < count; i += all_threads()) {
        u64 strip = quotient_of(i, pieces), row = quotient_of(strip, strips), image = quotient_of(row, a.out_h);
        u32 channel = (u32)(i - strip * pieces) * EACH_TIME, first = (u32)(strip - row * strips) * WIDE;
        int top = (int)((row - image * a.out_h) * a.stride_h) - (int)a.pad_top;
        int left = (int)(first * a.stride_w) - (int)a.pad_left;
        Eight sums[WIDE] = {};
        for (u32 tap = 0; tap < taps; ++tap) {
            u32 tap_y = tap / a.kernel_w, tap_x = tap - tap_y * a.kernel_w;
            int y = top + (int)(tap_y * a.dilation_h);
            if (y < 0 || y >= (int)a.h) continue;
            Eight weights;
            for (int at = 0; at < EACH_TIME; ++at) {
                weights.x[at] = float_at(a.element, a.weights, (u64)(channel + at) * taps + tap);
            }
            u64 pixels = (image * a.h + (u64)y) * a.w;
#pragma unroll
            for (int pixel = 0; pixel < WIDE; ++pixel) {
                int x = left + pixel * (int)a.stride_w + (int)(tap_x * a.dilation_w);
                if (x < 0 || x >= (int)a.w) continue;
                Eight read = eight_at(a.element, a.x, (pixels + (u64)x) * a.c + channel);
                for (int at = 0; at < EACH_TIME; ++at) sums[pixel].x[at] += read.x[at] * weights.x[at];
            }
        }
        Eight bias = {};
        if (a.bias) bias = eight_at(a.element, a.bias, channel);
#pragma unroll
        for (int pixel = 0; pixel < WIDE; ++pixel) {
            if (first + pixel >= a.out_w) continue;
            for (int at = 0; at < EACH_TIME; ++at) {
                sums[pixel].x[at] = activated(a.activation, sums[pixel].x[at] + bias.x[at]);
            }
            write_eight(a.element, a.y, (row * a.out_w + first + pixel) * a.c + channel, sums[pixel]);
        }
    }
}

// A convolution by depth of images of halves whose channels come last: each channel has its own kernel.
// Three blocks have room on a multiprocessor: 80 registers a thread.
extern "C" __global__ void __launch_bounds__(THREADS, 3) convolution_by_depth(ConvolutionArguments a) {
    if ((u64)a.n * a.out_h * a.out_w * (a.c / EACH_TIME) < MANY_PIECES) channels_by_depth<1>(a);
    else channels_by_depth<4>(a);
}
