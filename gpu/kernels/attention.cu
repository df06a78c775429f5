// Attention of halves by tensor cores: for each head softmax(scale * q * k' + mask) * v, of which the
// scores never reach memory. A block has 128 rows of q, 16 a warp, in its registers, and all rows of k
// and v pass by in tiles: while one is used, the next is copied. The softmax is kept as it would be if
// the rows so far were all (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018).

#define ATTENTION_ROWS 128
#define ROWS_OF_WARP 16
// Scores are kept as exponents of 2.
#define LOG2_E 1.4426950408889634f

// The tiles that a block shares: at first q lies there.
template <int SIZE>
struct AttentionTiles {
    static constexpr int KEYS = 4096 / SIZE;
    alignas(16) u16 of[2][2][KEYS * SIZE];
};

// Returns the place of a chunk of 8 halves in a tile of rows of SIZE halves. Chunks are exchanged such
// that 8 rows of a chunk lie in different banks.
template <int SIZE>
__device__ static u32 head_place(u32 row, u32 chunk) {
    return row * SIZE + (chunk ^ (row % 8)) * 8;
}

// Starts to copy rows of a head to a tile; what there is not becomes 0.
template <int SIZE>
__device__ static void load_rows(u16* tile, const u16* rows, const AttentionArguments& a, u64 first, u64 all, u32 count) {
    for (u32 at = threadIdx.x; at < count * (SIZE / 8); at += THREADS) {
        u32 row = at / (SIZE / 8), chunk = at % (SIZE / 8);
        bool is_there = first + row < all && chunk * 8 < a.size;
        copy_async(tile + head_place<SIZE>(row, chunk), is_there ? rows + (first + row) * a.lead + chunk * 8 : rows, is_there);
    }
}

// The lanes that share rows of a fragment.
#define LANES_OF_ROW 4

template <bool BF16>
__device__ static u32 pair_of(float x, float y) {
    return (u32)rounded<BF16>(x) | (u32)rounded<BF16>(y) << 16;
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

// Adds the rows of v in a tile, by their weights, to what a warp has mixed.
template <bool BF16, int SIZE>
__device__ static void mix_tile(
    float (&sums)[SIZE / 8][4], const float (&weights)[AttentionTiles<SIZE>::KEYS / 8][4], const u16* v) {
    u32 lane = threadIdx.x % LANES, matrix = lane / 8;
#pragma unroll
    for (int keys = 0; keys < AttentionTiles<SIZE>::KEYS / 16; ++keys) {
        const float(&first)[4] = weights[2 * keys];
        const float(&second)[4] = weights[2 * keys + 1];
        u32 left[4] = {pair_of<BF16>(first[0], first[1]), pair_of<BF16>(first[2], first[3]),
                       pair_of<BF16>(second[0], second[1]), pair_of<BF16>(second[2], second[3])};
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
    const AttentionArguments& a, AttentionTiles<SIZE>& tiles, u64 batch, u64 head, u64 first) {
    constexpr int KEYS = AttentionTiles<SIZE>::KEYS;
    u32 warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, matrix = lane / 8;
    const u16* q_rows = (const u16*)a.q + batch * a.queries * a.lead + head * a.size;
    const u16* k_rows = (const u16*)a.k + batch * a.keys * a.lead + head * a.size;
    const u16* v_rows = (const u16*)a.v + batch * a.keys * a.lead + head * a.size;
    auto load_tiles = [&](u64 step) {
        load_rows<SIZE>(tiles.of[(step + 1) % 2][0], k_rows, a, step * KEYS, a.keys, KEYS);
        load_rows<SIZE>(tiles.of[(step + 1) % 2][1], v_rows, a, step * KEYS, a.keys, KEYS);
    };
    // Where q leaves room, the first tiles are copied beside it.
    constexpr bool EARLY = ATTENTION_ROWS * SIZE <= 2 * KEYS * SIZE;
    u16* shared_q = tiles.of[0][0];
    load_rows<SIZE>(shared_q, q_rows, a, first, a.queries, ATTENTION_ROWS);
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
    u64 steps = (a.keys + KEYS - 1) / KEYS;
    for (u64 step = 0; step <= steps; ++step) {
        // The tiles of this step are loaded while those of the one before are used.
        if (step < steps && (step > 0 || !EARLY)) load_tiles(step);
        commit_async();
        if (step == 0) continue;
        wait_async<1>();
        __syncthreads();
        const u16(&tile)[2][KEYS * SIZE] = tiles.of[step % 2];
        u64 first_key = (step - 1) * KEYS;
        u32 keys = (u32)(a.keys - first_key < KEYS ? a.keys - first_key : KEYS);
        float scores[KEYS / 8][4];
        scores_of_tile<BF16, SIZE>(scores, q, tile[0]);
        float now[2] = {most[0], most[1]};
#pragma unroll
        for (int at = 0; at < KEYS / 8; ++at) {
#pragma unroll
            for (int of = 0; of < 4; ++of) {
                u32 key = at * 8 + lane % 4 * 2 + of % 2;
                float score = scores[at][of] * scale;
                if (a.mask && key < keys) {
                    u64 row = first + warp * ROWS_OF_WARP + lane / 4 + of / 2 * 8;
                    row = row < a.queries ? row : 0;
                    i64 place = (i64)batch * a.mask_strides[4] + (i64)head * a.mask_strides[5] +
                                (i64)row * a.mask_strides[6] + (i64)(first_key + key) * a.mask_strides[7];
                    score += widened<BF16>(((const u16*)a.mask)[place]) * LOG2_E;
                }
                scores[at][of] = key < keys ? score : -INFINITE;
                now[of / 2] = fmaxf(now[of / 2], scores[at][of]);
            }
        }
        float below[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            now[half] = of_lanes<LANES_OF_ROW>(BY_MAX, now[half]);
            // Rows that are masked as a whole so far have nothing.
            below[half] = now[half] == -INFINITE ? 0.0f : now[half];
            float factor = exp2f(most[half] - below[half]);
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
                scores[at][of] = exp2f(scores[at][of] - below[of / 2]);
                total[of / 2] += scores[at][of];
            }
        }
        mix_tile<BF16, SIZE>(sums, scores, tile[1]);
        __syncthreads();
    }
    wait_async<0>();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float by = 1.0f / of_lanes<LANES_OF_ROW>(BY_SUM, total[half]);
        u64 row = first + warp * ROWS_OF_WARP + lane / 4 + half * 8;
        if (row >= a.queries) continue;
        u16* y = (u16*)a.y + ((batch * a.queries + row) * a.heads + head) * a.size;
#pragma unroll
        for (int across = 0; across < SIZE / 8; ++across) {
            u32 column = across * 8 + lane % 4 * 2;
            if (column >= a.size) continue;
            *(u32*)(y + column) = pair_of<BF16>(sums[across][2 * half] * by, sums[across][2 * half + 1] * by);
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
        attention_of_rows<BF16, SIZE>(a, tiles, batch, head, part * ATTENTION_ROWS);
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
