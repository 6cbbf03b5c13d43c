/* simt_attention.cu - softmax attention inside segments, for every vendor: head widths up to 256, bf16
 * on matrix units, f32 by FMA.
 *
 * In       q [n, H, d], k and v [n, K, d], sinks [n_sinks, H] f32 or none, segments on the host
 * Out      y [n, H, d]
 * bf16     a block takes 64 queries of one head, a warp 16 of them; keys pass in blocks of 64, K and V
 *          one after the other in the same memory.  Results stay in fragments: which row an element of
 *          a fragment belongs to is found by loading row numbers into one, so rows can be scaled
 *          without knowing a vendor's layout
 * f32      a warp takes one query, a lane one key of 32, then dims
 * Numerics scores and sums in f32; P is rounded for the product with V, row sums are of the unrounded
 *          P; one division at the end, then the sinks
 * Order    keys ascending in blocks from the segment's begin; queries do not see each other
 * Twin     backend/cpu/ref/attention.c */
#include "backend/gpu/dnn.h"
#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

#define SEGMENTS     32 /* of one launch */
#define QUERIES      64
#define KEYS         64
#define THREADS      128
#define SCORE_STRIDE (KEYS + 4)
#define F32_KEYS     32
#define DIM_MAX      M2_GPU_HEAD_DIM_MAX

typedef gpu_wmma::fragment<gpu_wmma::matrix_a, 16, 16, 16, gpu_bf16, gpu_wmma::row_major> frag_a;
typedef gpu_wmma::fragment<gpu_wmma::matrix_b, 16, 16, 16, gpu_bf16, gpu_wmma::row_major> frag_v;
typedef gpu_wmma::fragment<gpu_wmma::matrix_b, 16, 16, 16, gpu_bf16, gpu_wmma::col_major> frag_k;
typedef gpu_wmma::fragment<gpu_wmma::accumulator, 16, 16, 16, float> frag_c;

typedef struct attention_shape {
    int n_heads, n_kv, dim, n_sinks, is_causal;
    float scale;
    const float *sinks;
    int n_segments;
    int64_t begin[SEGMENTS + 1];
    int tile_begin[SEGMENTS + 1]; /* a segment's first tile of queries */
} attention_shape;

/* Queries [query, query + ...) of a segment, and its keys up to the last that any of them may see. */
typedef struct attention_tile {
    int64_t query, begin, end;
} attention_tile;

static __device__ __forceinline__ attention_tile tile_of(const attention_shape &shape,
                                                         int n_queries)
{
    int segment = 0;
    while (segment + 1 < shape.n_segments && blockIdx.x >= shape.tile_begin[segment + 1]) segment++;
    attention_tile tile;
    tile.begin = shape.begin[segment];
    tile.end = shape.begin[segment + 1];
    tile.query = tile.begin + (int64_t)(blockIdx.x - shape.tile_begin[segment]) * n_queries;
    return tile;
}

/* The keys that the last of a tile's queries sees end here. */
static __device__ __forceinline__ int64_t keys_end(const attention_shape &shape,
                                                   const attention_tile &tile, int n_queries)
{
    const int64_t last = tile.query + n_queries;
    return shape.is_causal && last < tile.end ? last : tile.end;
}

/* ln(e^a + e^b) */
static __device__ __forceinline__ float log_add(float a, float b)
{
    return (a > b ? a : b) + log1pf(expf(-fabsf(a - b)));
}

/* What the sinks leave of the result: e^lse / (e^lse + sum of e^sink). */
static __device__ float sink_factor(const attention_shape &shape, int head, float lse)
{
    float sink = shape.sinks[head];
    for (int s = 1; s < shape.n_sinks; s++)
        sink = log_add(sink, shape.sinks[s * shape.n_heads + head]);
    return simt_sigmoid(lse - sink);
}

/* ---- bf16 ------------------------------------------------------------------------------------------ */

/* P takes the place of the scores it came from, row by row. */
template <int DIM> struct attention_shared {
    gpu_bf16 q[QUERIES * (DIM + 8)];
    gpu_bf16 kv[KEYS * (DIM + 8)];
    float scores[QUERIES * SCORE_STRIDE];
    float decay[QUERIES];
};

/* Rows [row, row + 64) of one head of x [n, heads, dim]; zeros from row_end on and behind dim. */
template <int DIM, int IS_WIDE>
static __device__ __forceinline__ void load_rows(const gpu_bf16 *x, int64_t row, int64_t row_end,
                                                 int heads, int head, int dim, gpu_bf16 *to)
{
    for (int i = threadIdx.x; i < 64 * (DIM / 8); i += THREADS) {
        const int r = i / (DIM / 8), c = i % (DIM / 8) * 8;
        union {
            gpu_bf16 values[8];
            uint4 raw;
        } pack;
        pack.raw = make_uint4(0, 0, 0, 0);
        if (row + r < row_end) {
            const gpu_bf16 *from = x + ((row + r) * heads + head) * dim + c;
            if constexpr (IS_WIDE) {
                if (c < dim) pack.raw = *(const uint4 *)from;
            } else {
#pragma unroll
                for (int j = 0; j < 8; j++)
                    if (c + j < dim) pack.values[j] = from[j];
            }
        }
        *(uint4 *)(to + r * (DIM + 8) + c) = pack.raw;
    }
}

/* A warp's scores: 16 queries, 64 keys. */
template <int DIM>
static __device__ __forceinline__ void make_scores(const gpu_bf16 *q, const gpu_bf16 *k,
                                                   float *scores)
{
    frag_c sums[KEYS / 16];
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) gpu_wmma::fill_fragment(sums[j], 0.0f);
#pragma unroll
    for (int d = 0; d < DIM; d += 16) {
        frag_a a;
        gpu_wmma::load_matrix_sync(a, q + d, DIM + 8);
#pragma unroll
        for (int j = 0; j < KEYS / 16; j++) {
            frag_k b;
            gpu_wmma::load_matrix_sync(b, k + j * 16 * (DIM + 8) + d, DIM + 8);
            gpu_wmma::mma_sync(sums[j], a, b, sums[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++)
        gpu_wmma::store_matrix_sync(scores + j * 16, sums[j], SCORE_STRIDE,
                                    gpu_wmma::mem_row_major);
}

/* Running state of a query, the same in the two lanes that share its row. */
typedef struct row_state {
    float max, sum;
} row_state;

/* One block of scores becomes P; the lane looks at two of every four keys of its row.  `first` is the
 * block's first key, keys from `end` on are hidden. */
static __device__ __forceinline__ void take_scores(float *row, int64_t first, int64_t end,
                                                   float scale, row_state *state, float *decay_out)
{
    const int half = threadIdx.x % 2;
    const int64_t n_left = end - first;
    const int n_seen = n_left < KEYS ? (int)n_left : KEYS;
    float p[KEYS / 2], max = -INFINITY;
#pragma unroll
    for (int j = 0; j < KEYS / 4; j++) {
        const float2 pair = *(const float2 *)(row + 4 * j + 2 * half);
        p[2 * j] = 4 * j + 2 * half < n_seen ? pair.x * scale : -INFINITY;
        p[2 * j + 1] = 4 * j + 2 * half + 1 < n_seen ? pair.y * scale : -INFINITY;
        max = fmaxf(max, fmaxf(p[2 * j], p[2 * j + 1]));
    }
    max = fmaxf(fmaxf(max, gpu_shfl_xor(max, 1)), state->max);
    const float decay = expf(state->max - max);
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < KEYS / 2; j++) {
        p[j] = expf(p[j] - max);
        sum += p[j];
    }
    sum += gpu_shfl_xor(sum, 1);
    state->sum = fmaf(state->sum, decay, sum);
    state->max = max;
    *decay_out = decay;
    gpu_syncwarp(); /* the scores of the row have been read by both lanes */
    gpu_bf16 *to = (gpu_bf16 *)row;
#pragma unroll
    for (int j = 0; j < KEYS / 4; j++) {
        union {
            gpu_bf16 values[2];
            unsigned int raw;
        } pack;
        pack.values[0] = __float2bfloat16_rn(p[2 * j]);
        pack.values[1] = __float2bfloat16_rn(p[2 * j + 1]);
        *(unsigned int *)(to + 4 * j + 2 * half) = pack.raw;
    }
}

/* A warp's results, times the decay of their rows, plus P times V. */
template <int DIM>
static __device__ __forceinline__ void add_values(frag_c out[DIM / 16], const int row_of[8],
                                                  const float *decay, const float *p,
                                                  const gpu_bf16 *v)
{
    float factor[8];
#pragma unroll
    for (int i = 0; i < 8; i++) factor[i] = decay[row_of[i]];
#pragma unroll
    for (int c = 0; c < DIM / 16; c++)
#pragma unroll
        for (int i = 0; i < 8; i++) out[c].x[i] *= factor[i];
#pragma unroll
    for (int j = 0; j < KEYS; j += 16) {
        frag_a a;
        gpu_wmma::load_matrix_sync(a, (const gpu_bf16 *)p + j, 2 * SCORE_STRIDE);
#pragma unroll
        for (int c = 0; c < DIM / 16; c++) {
            frag_v b;
            gpu_wmma::load_matrix_sync(b, v + j * (DIM + 8) + c * 16, DIM + 8);
            gpu_wmma::mma_sync(out[c], a, b, out[c]);
        }
    }
}

/* Row numbers 0 to 15 of a fragment's elements, by way of `stage`, 16 rows of scores. */
static __device__ __forceinline__ void find_rows(float *stage, int row_of[8])
{
    const int lane = threadIdx.x % SIMT_WARP;
    frag_c rows;
    static_assert(frag_c::num_elements == 8, "a fragment of 16 x 16 is spread over 32 lanes");
    for (int i = lane; i < 256; i += SIMT_WARP)
        stage[i / 16 * SCORE_STRIDE + i % 16] = (float)(i / 16);
    gpu_syncwarp();
    gpu_wmma::load_matrix_sync(rows, stage, SCORE_STRIDE, gpu_wmma::mem_row_major);
#pragma unroll
    for (int i = 0; i < 8; i++) row_of[i] = (int)rows.x[i];
    gpu_syncwarp();
}

/* Divide, let the sinks take their part, store: row `lane / 2` of the warp, 64 columns at a time. */
template <int DIM, int IS_WIDE>
static __device__ __forceinline__ void
store_rows(frag_c out[DIM / 16], float *stage, const attention_shape &shape, const row_state *state,
           int is_row, int head, gpu_bf16 *to)
{
    const int lane = threadIdx.x % SIMT_WARP;
    const float factor =
        shape.sinks ? sink_factor(shape, head, state->max + logf(state->sum)) : 1.0f;
#pragma unroll
    for (int first = 0; first < DIM; first += KEYS) {
#pragma unroll
        for (int j = 0; j < KEYS / 16 && first + j * 16 < DIM; j++)
            gpu_wmma::store_matrix_sync(stage + j * 16, out[first / 16 + j], SCORE_STRIDE,
                                        gpu_wmma::mem_row_major);
        gpu_syncwarp();
        for (int c = lane % 2 * 8; c < KEYS && first + c < shape.dim; c += 16) {
            float value[8];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                value[j] = stage[lane / 2 * SCORE_STRIDE + c + j] / state->sum;
                if (shape.sinks) value[j] = simt_round_bf16(value[j]) * factor;
            }
            if (is_row) simt_put_some<IS_WIDE>(to, first + c, shape.dim - first - c, value);
        }
        gpu_syncwarp();
    }
}

template <int DIM, int IS_WIDE>
static __global__ void __launch_bounds__(THREADS)
    attention_bf16_kernel(const gpu_bf16 *q, const gpu_bf16 *k, const gpu_bf16 *v, gpu_bf16 *y,
                          attention_shape shape)
{
    extern __shared__ __align__(128) unsigned char memory[];
    attention_shared<DIM> *shared = (attention_shared<DIM> *)memory;
    const int warp = threadIdx.x / SIMT_WARP, lane = threadIdx.x % SIMT_WARP;
    const int warp_row = warp * 16, own_row = warp_row + lane / 2, head = blockIdx.y;
    const int kv_head = head / (shape.n_heads / shape.n_kv);
    const attention_tile tile = tile_of(shape, QUERIES);
    const int64_t end = keys_end(shape, tile, QUERIES), query = tile.query + own_row;
    const int64_t own_end = shape.is_causal && query + 1 < tile.end ? query + 1 : tile.end;
    float *scores = shared->scores + warp_row * SCORE_STRIDE;

    load_rows<DIM, IS_WIDE>(q, tile.query, tile.end, shape.n_heads, head, shape.dim, shared->q);
    frag_c out[DIM / 16];
#pragma unroll
    for (int c = 0; c < DIM / 16; c++) gpu_wmma::fill_fragment(out[c], 0.0f);
    int row_of[8];
    find_rows(scores, row_of);
    row_state state = { -INFINITY, 0.0f };
    for (int64_t first = tile.begin; first < end; first += KEYS) {
        float decay;
        __syncthreads(); /* V of the block before has been read */
        load_rows<DIM, IS_WIDE>(k, first, tile.end, shape.n_kv, kv_head, shape.dim, shared->kv);
        __syncthreads();
        make_scores<DIM>(shared->q + warp_row * (DIM + 8), shared->kv, scores);
        __syncthreads(); /* K has been read */
        load_rows<DIM, IS_WIDE>(v, first, tile.end, shape.n_kv, kv_head, shape.dim, shared->kv);
        take_scores(shared->scores + own_row * SCORE_STRIDE, first, own_end, shape.scale, &state,
                    &decay);
        if (lane % 2 == 0) shared->decay[own_row] = decay;
        __syncthreads();
        add_values<DIM>(out, row_of, shared->decay + warp_row, scores, shared->kv);
    }
    __syncthreads();
    store_rows<DIM, IS_WIDE>(out, scores, shape, &state, query < tile.end, head,
                             y + (query * shape.n_heads + head) * shape.dim);
}

/* ---- f32 ------------------------------------------------------------------------------------------- */

/* q . k of two rows in shared memory, in chains of 32. */
static __device__ __forceinline__ float dot(const float *q, const float *k, int dim)
{
    float total = 0.0f;
    for (int first = 0; first < dim; first += 32) {
        float chain = 0.0f;
        for (int d = first; d < dim && d < first + 32; d++) chain = fmaf(q[d], k[d], chain);
        total += chain;
    }
    return total;
}

static __global__ void __launch_bounds__(SIMT_THREADS)
    attention_f32_kernel(const float *q, const float *k, const float *v, float *y,
                         attention_shape shape)
{
    extern __shared__ float rows[]; /* [SIMT_WARPS][dim] of q, [F32_KEYS][dim + 1] of k */
    const int warp = threadIdx.x / SIMT_WARP, lane = threadIdx.x % SIMT_WARP;
    const int head = blockIdx.y, kv_head = head / (shape.n_heads / shape.n_kv), dim = shape.dim;
    const attention_tile tile = tile_of(shape, SIMT_WARPS);
    const int64_t end = keys_end(shape, tile, SIMT_WARPS);
    const int is_query = tile.query + warp < tile.end;
    const int64_t query = is_query ? tile.query + warp : tile.end - 1;
    const int64_t own_end = shape.is_causal ? query + 1 : tile.end;
    float *own_q = rows + warp * dim, *k_rows = rows + SIMT_WARPS * dim;
    for (int d = lane; d < dim; d += SIMT_WARP)
        own_q[d] = q[(query * shape.n_heads + head) * dim + d];

    float out[DIM_MAX / SIMT_WARP] = { 0 };
    row_state state = { -INFINITY, 0.0f };
    for (int64_t first = tile.begin; first < end; first += F32_KEYS) {
        const int64_t left = tile.end - first;
        const int n_keys = left < F32_KEYS ? (int)left : F32_KEYS;
        __syncthreads(); /* the keys before have been read */
        for (int j = warp; j < n_keys; j += SIMT_WARPS)
            for (int d = lane; d < dim; d += SIMT_WARP)
                k_rows[j * (dim + 1) + d] = k[((first + j) * shape.n_kv + kv_head) * dim + d];
        __syncthreads();
        const int is_seen = lane < n_keys && first + lane < own_end;
        const float product = dot(own_q, k_rows + (is_seen ? lane : 0) * (dim + 1), dim);
        const float score = is_seen ? product * shape.scale : -INFINITY;
        const float max = fmaxf(simt_warp_max(score), state.max);
        const float decay = expf(state.max - max), p = expf(score - max);
        state.sum = fmaf(state.sum, decay, simt_warp_sum(p));
        state.max = max;
        float part[DIM_MAX / SIMT_WARP] = { 0 };
        for (int j = 0; j < n_keys; j++) {
            const float weight = gpu_shfl(p, j);
            const float *row = v + ((first + j) * shape.n_kv + kv_head) * dim;
#pragma unroll
            for (int i = 0; i < DIM_MAX / SIMT_WARP; i++)
                if (lane + i * SIMT_WARP < dim)
                    part[i] = fmaf(weight, row[lane + i * SIMT_WARP], part[i]);
        }
#pragma unroll
        for (int i = 0; i < DIM_MAX / SIMT_WARP; i++) out[i] = fmaf(out[i], decay, part[i]);
    }
    const float factor = shape.sinks ? sink_factor(shape, head, state.max + logf(state.sum)) : 1.0f;
#pragma unroll
    for (int i = 0; i < DIM_MAX / SIMT_WARP; i++) {
        const int d = lane + i * SIMT_WARP;
        const float value = out[i] / state.sum;
        if (is_query && d < dim)
            y[(query * shape.n_heads + head) * dim + d] = shape.sinks ? value * factor : value;
    }
}

/* ---- launch ---------------------------------------------------------------------------------------- */

template <int DIM, int IS_WIDE>
static void launch_bf16(struct m2_gpu *gpu, const m2_attention_args *args,
                        const attention_shape *shape, dim3 grid)
{
    const int bytes = (int)sizeof(attention_shared<DIM>);
    gpuFuncSetAttribute((const void *)attention_bf16_kernel<DIM, IS_WIDE>,
                        gpuFuncAttributeMaxDynamicSharedMemorySize, bytes);
    attention_bf16_kernel<DIM, IS_WIDE><<<grid, THREADS, bytes, gpu->stream>>>(
        (const gpu_bf16 *)args->q->data, (const gpu_bf16 *)args->k->data,
        (const gpu_bf16 *)args->v->data, (gpu_bf16 *)args->y->data, *shape);
}

static void launch(struct m2_gpu *gpu, const m2_attention_args *args, const attention_shape *shape)
{
    const int dim = shape->dim;
    const dim3 grid((unsigned int)shape->tile_begin[shape->n_segments],
                    (unsigned int)shape->n_heads);
    if (grid.x == 0) return;
    if (args->q->dtype == M2_F32) {
        const int floats = SIMT_WARPS * dim + F32_KEYS * (dim + 1);
        attention_f32_kernel<<<grid, SIMT_THREADS, floats * sizeof(float), gpu->stream>>>(
            (const float *)args->q->data, (const float *)args->k->data,
            (const float *)args->v->data, (float *)args->y->data, *shape);
        return;
    }
    const int is_wide = simt_is_wide(args->q, dim) && simt_is_wide(args->k, dim) &&
                        simt_is_wide(args->v, dim) && simt_is_wide(args->y, dim);
    SIMT_BY_WIDTH(is_wide, WIDE, {
        if (dim <= 32)
            launch_bf16<32, WIDE>(gpu, args, shape, grid);
        else if (dim <= 64)
            launch_bf16<64, WIDE>(gpu, args, shape, grid);
        else if (dim <= 128)
            launch_bf16<128, WIDE>(gpu, args, shape, grid);
        else
            launch_bf16<DIM_MAX, WIDE>(gpu, args, shape, grid);
    });
}

extern "C" void m2_gpu_attention(const m2_ops *ops, const m2_attention_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    if (gpu->prefers_dnn && m2_gpu_attention_library(gpu, args)) return;
    if (M2_GPU_TRY_SM90(attention, gpu, args)) return;
    if (m2_gpu_attention_library(gpu, args)) return;
    attention_shape shape;
    shape.n_heads = (int)args->q->shape[1];
    shape.n_kv = (int)args->k->shape[1];
    shape.dim = (int)args->q->shape[2];
    shape.n_sinks = args->sinks ? (int)args->sinks->shape[0] : 0;
    shape.sinks = args->sinks ? (const float *)args->sinks->data : 0;
    shape.is_causal = args->is_causal;
    shape.scale = args->scale;
    assert(shape.dim <= DIM_MAX && shape.n_heads % shape.n_kv == 0);
    assert(args->segments[args->n_segments] == args->q->shape[0]);
    const int n_queries = args->q->dtype == M2_F32 ? SIMT_WARPS : QUERIES;
    for (int first = 0; first < args->n_segments; first += SEGMENTS) {
        const int left = args->n_segments - first;
        shape.n_segments = left < SEGMENTS ? left : SEGMENTS;
        shape.tile_begin[0] = 0;
        for (int s = 0; s < shape.n_segments; s++) {
            const int64_t n = args->segments[first + s + 1] - args->segments[first + s];
            shape.begin[s] = args->segments[first + s];
            shape.begin[s + 1] = shape.begin[s] + n;
            shape.tile_begin[s + 1] = shape.tile_begin[s] + (int)((n + n_queries - 1) / n_queries);
        }
        launch(gpu, args, &shape);
    }
    m2_gpu_launched(gpu, "attention");
}
