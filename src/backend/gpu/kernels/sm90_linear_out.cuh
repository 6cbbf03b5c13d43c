/* sm90_linear_out.cuh - what a product of sm90_linear.cu does with a finished tile.
 *
 * All of it begins with a rounding to bf16, so a warpgroup's tile of 64 x 256 is 64 words a thread.
 * They are finished in 16 slices, each short enough to hide under one step of the next tile. */
#ifndef M2_BACKEND_GPU_KERNELS_SM90_LINEAR_OUT_CUH
#define M2_BACKEND_GPU_KERNELS_SM90_LINEAR_OUT_CUH

#include "backend/gpu/kernels/simt_common.cuh"
#include "backend/gpu/kernels/sm90_ptx.cuh"

#define N_WORDS  64
#define N_SLICES 16

/* The rows and columns that a thread has parked: word 2 i + r is columns column + 8 i, + 1 of row
 * row + 8 r. */
typedef struct parked {
    int row, left; /* left: rows from `row` to the tile's end, 0 or less where there is none */
    int column;    /* of the tile */
    int group;
} parked;

SM90_INLINE int quad_lane(void)
{
    return (int)threadIdx.x % 4;
}

/* One row, 16 columns from two neighbouring groups of 8.  A quad of lanes holds columns 2 q,
 * 2 q + 1 of both; lanes exchange in pairs so that each has 8 bytes and a quad a sector. */
SM90_INLINE uint2 join_sector(uint32_t first, uint32_t second)
{
    const int is_odd = quad_lane() % 2;
    const uint32_t got = gpu_shfl_xor(is_odd ? first : second, 1);
    return is_odd ? make_uint2(got, second) : make_uint2(first, got);
}

/* Where this lane's 8 bytes of the sector lie. */
SM90_INLINE int sector_column(void)
{
    return quad_lane() % 2 * 8 + quad_lane() / 2 * 4;
}

SM90_INLINE float low_of(uint32_t word)
{
    return __uint_as_float(word << 16);
}

SM90_INLINE float high_of(uint32_t word)
{
    return __uint_as_float(word & 0xffff0000u);
}

/* ---- nothing more ------------------------------------------------------------------------------- */

struct out_plain {
    gpu_bf16 *y;
    int width;
};

SM90_INLINE void finish(const out_plain &out, const parked &at, int slice,
                        const uint32_t (&words)[N_WORDS])
{
    const int column = at.column + 16 * slice;
    gpu_bf16 *to = out.y + (int64_t)at.row * out.width + column + sector_column();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint2 sector = join_sector(words[4 * slice + r], words[4 * slice + 2 + r]);
        if (at.left > 8 * r && column < out.width)
            *(uint2 *)(to + (int64_t)(8 * r) * out.width) = sector;
    }
}

/* ---- swiglu7 -------------------------------------------------------------------------------------- */

struct out_swiglu7 {
    gpu_bf16 *y;
    int width; /* of y: half the columns */
};

/* Value i of a quad's lane q is column 4 i + q; afterwards lane q has columns 4 q ... 4 q + 3. */
SM90_INLINE uint2 join_quad(const float (&value)[4])
{
    const int is_odd = quad_lane() % 2, is_high = quad_lane() / 2;
    const uint32_t even = simt_bf16_pair(value[0], value[2]);
    const uint32_t odd = simt_bf16_pair(value[1], value[3]);
    const uint32_t own = is_odd ? odd : even, got = gpu_shfl_xor(is_odd ? even : odd, 1);
    const uint32_t left = is_odd ? got : own, right = is_odd ? own : got;
    const uint32_t first = __byte_perm(left, right, 0x5410); /* of group 0 or 1: two columns */
    const uint32_t second = __byte_perm(left, right, 0x7632); /* of group 2 or 3 */
    const uint32_t other = gpu_shfl_xor(is_high ? first : second, 2);
    return is_high ? make_uint2(other, second) : make_uint2(first, other);
}

/* Every second slice is 32 columns. */
SM90_INLINE void finish(const out_swiglu7 &out, const parked &at, int slice,
                        const uint32_t (&words)[N_WORDS])
{
    const int r = slice % 2, i = slice / 2 * 8 + r, column = at.column / 2 + slice / 2 * 16;
    float value[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        value[j] = simt_swiglu7(low_of(words[i + 2 * j]), high_of(words[i + 2 * j]));
    const uint2 sector = join_quad(value);
    gpu_bf16 *to = out.y + (int64_t)(at.row + 8 * r) * out.width + column + 4 * quad_lane();
    if (at.left > 8 * r && column < out.width) *(uint2 *)to = sector;
}

/* ---- queries, keys, values ------------------------------------------------------------------------- */

#define HEAD_DIM 128
#define N_ROT    48

struct out_heads {
    const float *q_norm, *k_norm, *rope;
    const int32_t *seq;
    gpu_bf16 *q, *k, *v;
    int n_heads, n_kv;
    float eps;
};

/* Sum of squares of one row of a head, the same in all lanes of a quad. */
SM90_INLINE float head_squares(const uint32_t *words)
{
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; i++) {
        const float low = low_of(words[2 * i]), high = high_of(words[2 * i]);
        sum = fmaf(high, high, fmaf(low, low, sum));
    }
    sum += gpu_shfl_xor(sum, 1);
    return sum + gpu_shfl_xor(sum, 2);
}

/* One row of 8 columns, normed. */
SM90_INLINE float2 normed(uint32_t word, float scale, const float *weight)
{
    const float2 w = *(const float2 *)weight;
    return make_float2(low_of(word) * scale * (w.x + 1.0f), high_of(word) * scale * (w.y + 1.0f));
}

SM90_INLINE void store_pair(gpu_bf16 *to, bool is_row, uint32_t first, uint32_t second)
{
    const uint2 sector = join_sector(first, second);
    if (is_row) *(uint2 *)(to + sector_column()) = sector;
}

/* Columns [16 i, 16 i + 16) and those N_ROT on of one row of a head, turned. */
SM90_INLINE void turn(const float *rope, const float *weight, float scale, int i,
                      const uint32_t *words, gpu_bf16 *to, bool is_row)
{
    uint32_t low[2], high[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int group = 2 * i + j, pair = 8 * group + 2 * quad_lane();
        float2 sine = make_float2(0.0f, 0.0f), cosine = sine;
        if (is_row) {
            sine = *(const float2 *)(rope + pair);
            cosine = *(const float2 *)(rope + N_ROT + pair);
        }
        const float2 a = normed(words[2 * group], scale, weight + pair);
        const float2 b = normed(words[2 * (group + N_ROT / 8)], scale, weight + pair + N_ROT);
        low[j] = simt_bf16_pair(fmaf(a.x, cosine.x, b.x * -sine.x),
                                fmaf(a.y, cosine.y, b.y * -sine.y));
        high[j] = simt_bf16_pair(fmaf(b.x, cosine.x, a.x * sine.x),
                                 fmaf(b.y, cosine.y, a.y * sine.y));
    }
    store_pair(to + 16 * i, is_row, low[0], low[1]);
    store_pair(to + N_ROT + 16 * i, is_row, high[0], high[1]);
}

SM90_INLINE void keep(const float *weight, float scale, int i, const uint32_t *words, gpu_bf16 *to,
                      bool is_row)
{
    const int column = 16 * i + 2 * quad_lane();
    const float2 a = normed(words[4 * i], scale, weight + column);
    const float2 b = normed(words[4 * i + 2], scale, weight + column + 8);
    store_pair(to + 16 * i, is_row, simt_bf16_pair(a.x, a.y), simt_bf16_pair(b.x, b.y));
}

/* Four slices a row of a head: three turn 32 columns, the last has the 32 that do not turn. */
SM90_INLINE void finish(const out_heads &out, const parked &at, int slice,
                        const uint32_t (&words)[N_WORDS])
{
    const int r = slice / 4 % 2, part = slice % 4, n_turned = out.n_heads + out.n_kv;
    const int head = at.column / HEAD_DIM + slice / 8;
    const bool is_row = at.left > 8 * r && head < n_turned + out.n_kv;
    const int64_t row = at.row + 8 * r, to_row = is_row ? out.seq[row] : 0;
    const uint32_t *own = words + slice / 8 * (N_WORDS / 2) + r;
    if (head >= n_turned) {
        gpu_bf16 *to = out.v + (to_row * out.n_kv + head - n_turned) * HEAD_DIM + 32 * part;
        own += 8 * part;
        store_pair(to, is_row, own[0], own[2]);
        store_pair(to + 16, is_row, own[4], own[6]);
        return;
    }
    const bool is_q = head < out.n_heads;
    const float *weight = (is_q ? out.q_norm : out.k_norm) + at.group * HEAD_DIM;
    gpu_bf16 *to = is_q ? out.q + (to_row * out.n_heads + head) * HEAD_DIM
                        : out.k + (to_row * out.n_kv + head - out.n_heads) * HEAD_DIM;
    const float scale = rsqrtf(head_squares(own) / (float)HEAD_DIM + out.eps);
    if (part < 3) {
        turn(out.rope + row * (2 * N_ROT), weight, scale, part, own, to, is_row);
    } else {
        keep(weight, scale, 6, own, to, is_row);
        keep(weight, scale, 7, own, to, is_row);
    }
}

#endif
