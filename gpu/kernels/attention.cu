// Attention of halves by tensor cores: for each head softmax(scale * q * k' + mask) * v, of which the
// scores never reach memory. A block has 128 rows of q, 16 a warp, in its registers, and all rows of k
// and v pass by in tiles: while one is used, the next is copied. The softmax is kept as it would be if
// the rows so far were all (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018).

#define ATTENTION_ROWS 128
#define ROWS_OF_WARP 16
// Scores are kept as exponents of 2.
#define LOG2_E 1.4426950408889634f

// The tiles that a block shares, at first q lies there; and what is added to the scores of their keys.
template <int SIZE>
struct AttentionTiles {
    static constexpr int KEYS = 4096 / SIZE;
    alignas(16) u16 of[2][2][KEYS * SIZE];
    float added[2][KEYS];
};

// Returns the place of a chunk of 8 halves in a tile of rows of SIZE halves. Chunks are exchanged such
// that 8 rows of a chunk lie in different banks.
template <int SIZE>
__device__ static u32 head_place(u32 row, u32 chunk) {
    return row * SIZE + (chunk ^ (row % 8)) * 8;
}

// Starts to copy rows of a head to a tile; what there is not becomes 0.
template <int SIZE, u32 COUNT>
__device__ static void load_rows(u16* tile, const u16* rows, const AttentionArguments& a, u32 first, u32 all) {
    constexpr u32 CHUNKS = SIZE / 8, AT_ONCE = THREADS / CHUNKS;
    u32 row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    u32 count = all - first < COUNT ? all - first : COUNT;
    if (chunk * 8 >= a.size) count = 0;
    const u16* from = rows + (u64)(first + row) * a.lead + chunk * 8;
    // The rows at once are a multiple of 8, so chunks are exchanged alike in all of a thread's rows.
    u16* to = tile + head_place<SIZE>(row, chunk);
    u64 next = AT_ONCE * a.lead;
#pragma unroll
    for (u32 at = 0; at < COUNT; at += AT_ONCE) {
        copy_async(to + at * SIZE, from, row + at < count);
        from += next;
    }
}

// The lanes that share rows of a fragment.
#define LANES_OF_ROW 4

// The row, of the block's, in which a lane has the element `of` of each of its fragments.
__device__ static u32 row_of_element(int of) {
    return threadIdx.x / LANES * ROWS_OF_WARP + threadIdx.x % LANES / LANES_OF_ROW + of / 2 * 8;
}

// The column in which it has the element of the fragment `at`.
__device__ static u32 column_of_element(int at, int of) {
    return at * 8 + threadIdx.x % LANES_OF_ROW * 2 + of % 2;
}

// The scores of a warp's rows with the rows of k in a tile: in fragments of 16 by 8.
template <bool BF16, int SIZE>
__device__ static void scores_of_tile(
    float (&scores)[AttentionTiles<SIZE>::KEYS / 8][4], const u32 (&q)[SIZE / 16][4], const u16* k) {
    u32 lane = threadIdx.x % LANES, matrix = lane / 8;
#pragma unroll
    for (int keys = 0; keys < AttentionTiles<SIZE>::KEYS / 16; ++keys) {
        for (int at = 0; at < 4; ++at) scores[2 * keys][at] = scores[2 * keys + 1][at] = 0.0f;
#pragma unroll
        for (int depth = 0; depth < SIZE / 16; ++depth) {
            u32 fragment[4];
            load_matrices(fragment, k + head_place<SIZE>(keys * 16 + matrix / 2 * 8 + lane % 8, depth * 2 + matrix % 2));
            add_product<BF16>(scores[2 * keys], q[depth], fragment[0], fragment[1]);
            add_product<BF16>(scores[2 * keys + 1], q[depth], fragment[2], fragment[3]);
        }
    }
}

// Returns what a mask adds to a score, as an exponent of 2.
template <bool BF16>
__device__ static float mask_at(const AttentionArguments& a, const u16* mask, u32 row, u32 key) {
    return widened<BF16>(mask[(i64)row * a.mask_strides[6] + (i64)key * a.mask_strides[7]]) * LOG2_E;
}

// Adds the mask of a head to the scores of a tile, where each row has its own.
template <bool BF16, int SIZE>
__device__ static void add_mask_by_row(
    float (&scores)[AttentionTiles<SIZE>::KEYS / 8][4], const AttentionArguments& a, const u16* mask, u32 first, u32 first_key) {
#pragma unroll
    for (int of = 0; of < 4; ++of) {
        u32 row = first + row_of_element(of);
        if (row >= a.queries) continue;
#pragma unroll
        for (int at = 0; at < AttentionTiles<SIZE>::KEYS / 8; ++at) {
            u32 key = first_key + column_of_element(at, of);
            if (key < a.keys) scores[at][of] += mask_at<BF16>(a, mask, row, key);
        }
    }
}

// Adds the rows of v in a tile, by their weights, to what a warp has mixed.
template <bool BF16, int SIZE>
__device__ static void mix_tile(
    float (&sums)[SIZE / 8][4], const float (&weights)[AttentionTiles<SIZE>::KEYS / 8][4], const u16* v) {
    u32 lane = threadIdx.x % LANES, matrix = lane / 8;
#pragma unroll
    for (int keys = 0; keys < AttentionTiles<SIZE>::KEYS / 16; ++keys) {
        const float(&first)[4] = weights[2 * keys];
        const float(&second)[4] = weights[2 * keys + 1];
        u32 left[4] = {rounded<BF16>(first[0], first[1]), rounded<BF16>(first[2], first[3]),
                       rounded<BF16>(second[0], second[1]), rounded<BF16>(second[2], second[3])};
#pragma unroll
        for (int across = 0; across < SIZE / 16; ++across) {
            u32 fragment[4];
            load_matrices_transposed(
                fragment, v + head_place<SIZE>(keys * 16 + matrix % 2 * 8 + lane % 8, across * 2 + matrix / 2));
            add_product<BF16>(sums[2 * across], left, fragment[0], fragment[1]);
            add_product<BF16>(sums[2 * across + 1], left, fragment[2], fragment[3]);
        }
    }
}

template <bool BF16, int SIZE>
__device__ static void attention_of_rows(
    const AttentionArguments& a, AttentionTiles<SIZE>& tiles, u64 batch, u64 head, u32 first) {
    constexpr int KEYS = AttentionTiles<SIZE>::KEYS;
    u32 warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, matrix = lane / 8;
    u32 queries = (u32)a.queries, keys = (u32)a.keys;
    const u16* q_rows = (const u16*)a.q + batch * a.queries * a.lead + head * a.size;
    const u16* k_rows = (const u16*)a.k + batch * a.keys * a.lead + head * a.size;
    const u16* v_rows = (const u16*)a.v + batch * a.keys * a.lead + head * a.size;
    auto load_tiles = [&](u32 step) {
        load_rows<SIZE, KEYS>(tiles.of[(step + 1) % 2][0], k_rows, a, step * KEYS, keys);
        load_rows<SIZE, KEYS>(tiles.of[(step + 1) % 2][1], v_rows, a, step * KEYS, keys);
    };
    // Where q leaves room, the first tiles are copied beside it.
    constexpr bool EARLY = ATTENTION_ROWS * SIZE <= 2 * KEYS * SIZE;
    u16* shared_q = tiles.of[0][0];
    load_rows<SIZE, ATTENTION_ROWS>(shared_q, q_rows, a, first, queries);
    commit_async();
    if (EARLY) load_tiles(0);
    commit_async();
    wait_async<1>();
    __syncthreads();
    u32 q[SIZE / 16][4];
#pragma unroll
    for (int depth = 0; depth < SIZE / 16; ++depth) {
        u32 row = warp * ROWS_OF_WARP + matrix % 2 * 8 + lane % 8;
        load_matrices(q[depth], shared_q + head_place<SIZE>(row, depth * 2 + matrix / 2));
    }
    __syncthreads();
    float sums[SIZE / 8][4] = {}, most[2] = {-INFINITE, -INFINITE}, total[2] = {};
    float scale = a.scale * LOG2_E;
    const u16* mask = (const u16*)a.mask + (i64)batch * a.mask_strides[4] + (i64)head * a.mask_strides[5];
    bool is_by_row = a.mask && a.mask_strides[6] != 0;
    u32 steps = (keys + KEYS - 1) / KEYS;
    for (u32 step = 0; step <= steps; ++step) {
        // The tiles of this step are loaded while those of the one before are used.
        if (step < steps && (step > 0 || !EARLY)) load_tiles(step);
        commit_async();
        u32 next_key = step * KEYS + threadIdx.x;
        float added = next_key < keys ? 0.0f : -INFINITE;
        if (threadIdx.x < KEYS && next_key < keys && a.mask && !is_by_row) added = mask_at<BF16>(a, mask, 0, next_key);
        float* next_added = tiles.added[(step + 1) % 2];
        if (step == 0) {
            if (threadIdx.x < KEYS) next_added[threadIdx.x] = added;
            continue;
        }
        wait_async<1>();
        __syncthreads();
        const u16(&tile)[2][KEYS * SIZE] = tiles.of[step % 2];
        float scores[KEYS / 8][4];
        scores_of_tile<BF16, SIZE>(scores, q, tile[0]);
        float now[2] = {most[0], most[1]};
#pragma unroll
        for (int at = 0; at < KEYS / 8; ++at) {
#pragma unroll
            for (int of = 0; of < 4; ++of) {
                scores[at][of] = scores[at][of] * scale + tiles.added[step % 2][column_of_element(at, of)];
            }
        }
        if (is_by_row) add_mask_by_row<BF16, SIZE>(scores, a, mask, first, (step - 1) * KEYS);
#pragma unroll
        for (int at = 0; at < KEYS / 8; ++at) {
#pragma unroll
            for (int of = 0; of < 4; ++of) now[of / 2] = fmaxf(now[of / 2], scores[at][of]);
        }
        float below[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            now[half] = of_lanes<LANES_OF_ROW>(BY_MAX, now[half]);
            // Rows that are masked as a whole so far have nothing.
            below[half] = now[half] == -INFINITE ? 0.0f : now[half];
            float factor = power_of_two(most[half] - below[half]);
            total[half] *= factor;
#pragma unroll
            for (int across = 0; across < SIZE / 8; ++across) {
                sums[across][2 * half] *= factor;
                sums[across][2 * half + 1] *= factor;
            }
            most[half] = now[half];
        }
#pragma unroll
        for (int at = 0; at < KEYS / 8; ++at) {
#pragma unroll
            for (int of = 0; of < 4; ++of) {
                scores[at][of] = power_of_two(scores[at][of] - below[of / 2]);
                total[of / 2] += scores[at][of];
            }
        }
        mix_tile<BF16, SIZE>(sums, scores, tile[1]);
        if (threadIdx.x < KEYS) next_added[threadIdx.x] = added;
        __syncthreads();
    }
    wait_async<0>();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float by = 1.0f / of_lanes<LANES_OF_ROW>(BY_SUM, total[half]);
        u32 row = first + row_of_element(2 * half);
        if (row >= queries) continue;
        u16* y = (u16*)a.y + ((batch * queries + row) * a.heads + head) * a.size;
#pragma unroll
        for (int across = 0; across < SIZE / 8; ++across) {
            u32 column = column_of_element(across, 0);
            if (column >= a.size) continue;
            *(u32*)(y + column) = rounded<BF16>(sums[across][2 * half] * by, sums[across][2 * half + 1] * by);
        }
    }
}

template <bool BF16, int SIZE>
__device__ static void attention_of_halves(const AttentionArguments& a) {
    __shared__ AttentionTiles<SIZE> tiles;
    u64 parts = (a.queries + ATTENTION_ROWS - 1) / ATTENTION_ROWS;
    for (u64 batch = blockIdx.z; batch < a.batches; batch += gridDim.z)
    for (u64 head = blockIdx.y; head < a.heads; head += gridDim.y)
    for (u64 part = blockIdx.x; part < parts; part += gridDim.x) {
        attention_of_rows<BF16, SIZE>(a, tiles, batch, head, (u32)part * ATTENTION_ROWS);
    }
}

// Two blocks of the smaller one have room on a multiprocessor: 128 registers a thread.
#define ATTENTION(NAME, BF16, SIZE)                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, SIZE > 64 ? 1 : 2) NAME(AttentionArguments a) { \
        attention_of_halves<BF16, SIZE>(a);                                                          \
    }

#ifdef WITH_F16
ATTENTION(attention_f16_64, false, 64)
ATTENTION(attention_f16_128, false, 128)
#endif
#ifdef WITH_BF16
ATTENTION(attention_bf16_64, true, 64)
ATTENTION(attention_bf16_128, true, 128)
#endif
