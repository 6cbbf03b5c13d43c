/* sm90_attention.cu - softmax attention inside segments, with learned sinks, for Hopper.
 *
 *   y[i, h] = softmax(scale * q[i, h] . k[j, g]) . v[j, g],  j over the segment of i,  g = h / (H / K)
 *
 * In       q [n, H, 128], k and v [n, K, 128] bf16 as they come from the projections; sinks [n_sinks, H]
 *          f32 or none
 * Out      y [n, H, 128] bf16; gated: row i times the sigmoid of its heads' gates, to row places[i]
 * How      A pair of blocks takes 256 queries of one head, each block its 128, and walks the keys of the
 *          segment in tiles of 176; each block fetches half of a tile for both.  In a block one thread
 *          feeds Q, K and V to shared memory, two warpgroups take 64 queries each.  Scores,
 *          probabilities and sums never leave the registers.  The softmax of one group runs under
 *          the products of the other.  Under an item's last product a group finds what ends its
 *          rows: divisors, sinks, gates, places.
 * Why      Power is the limit: what is fetched twice, and every instruction of the softmax, is paid for
 *          in clock.  So probabilities stand on the maximum of the first tile of keys, and the tiles
 *          that follow look for no maximum: exp(s - m) may grow to 2^127 and is as exact there as at
 *          1.  Rows that do not end finite are marked, and computed again at the end with a
 *          running maximum, as are rows that NaN or infinity went into.
 * Limits   head width 128, bf16, no causal mask; the rest goes to simt_attention.cu
 * Numerics Scores and sums f32; probabilities are rounded to bf16 for the product with V, row sums are
 *          of the unrounded ones.
 * Order    Keys ascend from the segment's start in tiles of one width, and a row is computed again
 *          because of itself alone: bits depend on the row and its segment, on nothing else.
 * Twin     backend/cpu/ref/attention.c       Speed  bench/gpu/bench_attention.cu
 */
#include "backend/gpu/launch.h"

#include "backend/gpu/kernels/simt_common.cuh"
#include "backend/gpu/kernels/sm90_attention.cuh"
#include "backend/gpu/sm90_tensor_map.h"

/* ---- results -------------------------------------------------------------------------------- */

/* log2 of the sum of e^sink over the sinks of a head */
SM90_INLINE float sink_log2(const attention_params &params, int head)
{
    float top = -INFINITY, sum = 0.0f;
#pragma unroll 1
    for (int i = 0; i < params.n_sinks; i++)
        top = fmaxf(top, params.sinks[i * params.n_heads + head]);
    if (isinf(top)) return top;
#pragma unroll 1
    for (int i = 0; i < params.n_sinks; i++)
        sum += exp2_of((params.sinks[i * params.n_heads + head] - top) * LOG2_E);
    return fmaf(top, LOG2_E, __log2f(sum));
}

/* Votes of this warp's lanes: 1 in votes[r] where row r's sum is above 2^120, as the inverse of what is
 * above 2^126 would be a denormal, taken for zero, or where the lane's part of it is not finite. */
SM90_INLINE void vote_marks(const float (&o)[DIM / 2], const row_state &rows, uint32_t (&votes)[2])
{
    float zero[2]; /* or NaN */
#pragma unroll
    for (int r = 0; r < 2; r++) zero[r] = quad_sum(rows.sum[r]) * 0x1p8f * 0.0f;
#pragma unroll
    for (int i = 0; i < DIM / 2; i++) zero[i / 2 % 2] = fmaf(o[i], 0.0f, zero[i / 2 % 2]);
#pragma unroll
    for (int r = 0; r < 2; r++) votes[r] = gpu_ballot(zero[r] != 0.0f);
}

/* Where this thread's two rows go in y, and what their sums of values are multiplied by, rounding
 * after each: for the softmax, for the sinks, by the gate. */
typedef struct row_ends {
    int place[2];
    float inverse[2], factor[2], gate[2];
} row_ends;

/* Of rows `row` and row + 8 of the segment; those behind its end take the last one's place. */
SM90_INLINE row_ends find_ends(const attention_params &params, const work_item &item, int row,
                               const row_state &rows)
{
    const segment_desc &segment = params.segments[item.segment];
    row_ends ends;
    float logit[2] = { 0.0f, 0.0f };
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int at = segment.first_row + min(row + 8 * r, segment.n_rows - 1);
        ends.place[r] = params.places ? params.places[at] : at;
    }
    if (params.gates)
        for (int r = 0; r < 2; r++)
            logit[r] =
                __bfloat162float(params.gates[(int64_t)ends.place[r] * params.n_heads + item.head]);
    const float sink = params.n_sinks ? sink_log2(params, item.head) : -INFINITY;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float sum = quad_sum(rows.sum[r]);
        ends.inverse[r] = 1.0f / sum;
        ends.factor[r] = 1.0f / (1.0f + exp2_of(sink - (rows.max[r] + __log2f(sum))));
        ends.gate[r] = simt_sigmoid(logit[r]);
    }
    finish_before(ends.gate[0] * ends.factor[0] + ends.gate[1] * ends.factor[1]);
    return ends;
}

SM90_INLINE uint32_t scale_pair(uint32_t word, float by)
{
    return pack(__uint_as_float(word << 16) * by, __uint_as_float(word & 0xffff0000u) * by);
}

/* Stores this thread's part of one of its two rows.  Neighbouring lanes swap words, so that each stores
 * 8 bytes and four fill a sector. */
template <int R>
SM90_INLINE void store_row(const attention_params &params, int head, const float (&o)[DIM / 2],
                           const row_ends &ends, int is_wanted)
{
    const int quad_lane = (int)threadIdx.x % 4, is_odd = quad_lane & 1;
    gpu_bf16 *y = params.y + ((int64_t)ends.place[R] * params.n_heads + head) * DIM +
                  (is_odd ? 8 + 2 * (quad_lane - 1) : 2 * quad_lane);
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
        uint32_t word[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float *from = o + 8 * i + 4 * half + 2 * R;
            word[half] = pack(from[0] * ends.inverse[R], from[1] * ends.inverse[R]);
            if (params.n_sinks) word[half] = scale_pair(word[half], ends.factor[R]);
            if (params.gates) word[half] = scale_pair(word[half], ends.gate[R]);
        }
        const uint32_t got = gpu_shfl_xor(is_odd ? word[0] : word[1], 1);
        const uint2 out = is_odd ? make_uint2(got, word[1]) : make_uint2(word[0], got);
        if (is_wanted) *(uint2 *)(y + 16 * i) = out;
    }
}

/* An item's end for this warp, from under the last product on, which reads the stage of V at `place`:
 * marks are left or, in the second round, obeyed. */
template <int IS_AGAIN>
SM90_INLINE void finish_item(const attention_params &params, int idx, uint32_t rank,
                             uint32_t shared, uint32_t place, float (&o)[DIM / 2],
                             const row_state &rows)
{
    const int thread = (int)threadIdx.x - GROUP_THREADS, warp = thread / 32, lane = thread % 32;
    uint32_t(&marks)[2] = params.marks[idx].votes[rank][warp];
    const work_item item = item_at(params, idx, rank); /* cheaper than registers over the keys */
    const int row = item.row + warp * 16 + lane / 4, quad = lane / 4 * 4;
    const row_ends ends = find_ends(params, item, row, rows);
    sm90_wgmma_wait<0>();
    sm90_wgmma_pin(o);
    release(shared + V_EMPTY, place);
    uint32_t votes[2];
    if (IS_AGAIN) {
        votes[0] = marks[0];
        votes[1] = marks[1];
    } else {
        vote_marks(o, rows, votes);
        if (lane < 2) marks[lane] = lane ? votes[1] : votes[0];
        if (lane == 0 && (votes[0] | votes[1])) params.has_marks[sm90_cluster_idx()] = 1;
    }
    const int end = params.segments[item.segment].n_rows;
    store_row<0>(params, item.head, o, ends, row < end && (!IS_AGAIN || votes[0] >> quad & 15));
    store_row<1>(params, item.head, o, ends, row + 8 < end && (!IS_AGAIN || votes[1] >> quad & 15));
}

/* ---- a group of 64 queries ------------------------------------------------------------------ */

/* All keys of an item: sums of probabilities and of values, from place `place` of the rings on.  The
 * last product is left running. */
template <int IS_AGAIN>
SM90_INLINE void attend_item(float (&o)[DIM / 2], row_state &rows, uint32_t shared, uint32_t q,
                             uint32_t place, int n_keys, float scale)
{
    float s[KEYS / 2], decay[2];
    uint32_t p[KEYS / 16][4];
    int left = n_keys;
    wait_full(shared + K_FULL, place);
    sm90_wgmma_fence();
    start_scores(s, q, shared + K_TILES + stage_of(place) * KEY_BYTES);
    sm90_wgmma_wait<0>();
    sm90_wgmma_pin(s);
    release(shared + K_EMPTY, place);
    if (left < KEYS) hide_keys(s, left);
    raise_maxima(s, rows, scale, decay);
    exponentials(s, rows, scale);
    round_tile(p, s);
    for (left -= KEYS; left > 0; left -= KEYS, place++) {
        wait_full(shared + K_FULL, place + 1);
        sm90_wgmma_fence();
        start_scores(s, q, shared + K_TILES + stage_of(place + 1) * KEY_BYTES);
        wait_full(shared + V_FULL, place);
        sm90_wgmma_fence();
        start_values(o, p, shared + V_TILES + stage_of(place) * KEY_BYTES, left + KEYS < n_keys);
        sm90_wgmma_wait<1>();
        sm90_wgmma_pin(s);
        release(shared + K_EMPTY, place + 1);
        if (left < KEYS) hide_keys(s, left);
        if (IS_AGAIN) raise_maxima(s, rows, scale, decay);
        exponentials(s, rows, scale);
        sm90_wgmma_wait<0>();
        sm90_wgmma_pin(o);
        release(shared + V_EMPTY, place);
        round_tile(p, s);
        if (IS_AGAIN)
#pragma unroll
            for (int i = 0; i < DIM / 2; i++) o[i] *= decay[i / 2 % 2];
    }
    if (threadIdx.x % 32 == 0) sm90_bar_arrive(shared + Q_EMPTY);
    wait_full(shared + V_FULL, place);
    sm90_wgmma_fence();
    start_values(o, p, shared + V_TILES + stage_of(place) * KEY_BYTES, n_keys > KEYS);
}

/* A group that has no query in an item lets its tiles pass. */
static __device__ void skip_item(const attention_params &params, uint32_t shared, uint32_t place,
                                 uint32_t n_tiles, uint32_t (&marks)[2])
{
    const uint32_t lane = threadIdx.x % 32;
    if (lane < 2) marks[lane] = 0;
    if (lane == 0) sm90_bar_arrive(shared + Q_EMPTY);
    for (const uint32_t end = place + n_tiles; place != end; place++) {
        wait_full(shared + K_FULL, place);
        release(shared + K_EMPTY, place);
        wait_full(shared + V_FULL, place);
        release(shared + V_EMPTY, place);
    }
}

template <int IS_AGAIN>
static __device__ __forceinline__ void attend(const attention_params &params, uint32_t shared,
                                              uint32_t rank, int group, ring_state &at)
{
    for (int idx = (int)sm90_cluster_idx(); idx < params.n_items; idx += (int)sm90_n_clusters()) {
        if (IS_AGAIN && !is_marked(params, idx)) continue;
        const work_item item = item_at(params, idx, rank);
        const int n_keys = params.segments[item.segment].n_rows;
        const uint32_t n_tiles = (uint32_t)(n_keys + KEYS - 1) / KEYS;
        sm90_bar_wait(shared + Q_FULL, at.q_parity);
        at.q_parity ^= 1;
        if (item.row + group * GROUP_QUERIES >= n_keys) {
            const int warp = ((int)threadIdx.x - GROUP_THREADS) / 32;
            skip_item(params, shared, at.k_place, n_tiles, params.marks[idx].votes[rank][warp]);
        } else {
            float o[DIM / 2];
            row_state rows = { { -INFINITY, -INFINITY }, { 0.0f, 0.0f } };
            attend_item<IS_AGAIN>(o, rows, shared, shared + group * GROUP_QUERIES * ROW_BYTES,
                                  at.k_place, n_keys, params.scale);
            finish_item<IS_AGAIN>(params, idx, rank, shared, at.k_place + n_tiles - 1, o, rows);
        }
        at.k_place += n_tiles;
    }
}

/* ---- kernel and launcher -------------------------------------------------------------------- */

SM90_INLINE void init_barriers(uint32_t shared)
{
    sm90_bar_init(shared + Q_FULL, 1);
    sm90_bar_init(shared + Q_EMPTY, N_GROUPS * 4);
    for (int stage = 0; stage < STAGES; stage++) {
        sm90_bar_init(shared + K_FULL + 8 * stage, 1);
        sm90_bar_init(shared + K_EMPTY + 8 * stage, N_GROUPS * 4 * BLOCKS);
        sm90_bar_init(shared + V_FULL + 8 * stage, 1);
        sm90_bar_init(shared + V_EMPTY + 8 * stage, N_GROUPS * 4 * BLOCKS);
    }
    sm90_bar_init_fence();
}

/* Two rounds, the second only where the first left marks.  The barriers of the cluster between and
 * behind also keep a block from leaving while another writes to its memory. */
static __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(BLOCK_THREADS, 1)
    attention_kernel(const __grid_constant__ attention_params params)
{
    extern __shared__ char unaligned[];
    const uint32_t shared = (sm90_smem(unaligned) + 1023) & ~1023u, rank = sm90_cluster_rank();
    const uint32_t *has_marks = params.has_marks + sm90_cluster_idx();
    ring_state at = { 0, 0, 0 };
    if (threadIdx.x == 0) {
        init_barriers(shared);
        if (rank == 0) params.has_marks[sm90_cluster_idx()] = 0;
    }
    __syncthreads();
    sm90_cluster_sync();
    /* By the shuffle the compiler knows that all of a warp take one branch. */
    const int role = gpu_shfl((int)threadIdx.x / GROUP_THREADS, 0);
    if (role == 0) {
        sm90_registers_give<FEEDER_REGISTERS>();
        if (threadIdx.x == 0) feed<0>(params, shared, rank, at);
        __syncwarp();
        sm90_cluster_sync();
        if (!*has_marks) return;
        if (threadIdx.x == 0) feed<1>(params, shared, rank, at);
        __syncwarp();
        sm90_cluster_sync();
    } else {
        sm90_registers_take<GROUP_REGISTERS>();
        attend<0>(params, shared, rank, role - 1, at);
        sm90_cluster_sync();
        if (!*has_marks) return;
        attend<1>(params, shared, rank, role - 1, at);
        sm90_cluster_sync();
    }
}

static void add_range(attention_params *params, int segment, int first_tile, int n_tiles)
{
    if (n_tiles == 0) return;
    item_range *range = &params->ranges[params->n_ranges++];
    *range = { params->n_items, segment, first_tile, n_tiles };
    params->n_items += n_tiles * params->n_heads;
}

/* Whole tiles first, the ragged ones, which take less, at the end: blocks should end together. */
static void order_items(attention_params *params)
{
    const int n_queries = BLOCKS * QUERIES;
    params->n_ranges = params->n_items = 0;
    for (int i = 0; i < params->n_segments; i++)
        add_range(params, i, 0, params->segments[i].n_rows / n_queries);
    for (int i = 0; i < params->n_segments; i++)
        if (params->segments[i].n_rows % n_queries)
            add_range(params, i, params->segments[i].n_rows / n_queries, 1);
}

/* Describes up to SEGMENTS_MAX segments from number *next_io on, the longest first.
 * 0: no tensor maps here. */
static int describe_segments(attention_params *params, const m2_attention_args *args, int *next_io)
{
    const int64_t row_values = args->k->shape[1] * DIM;
    const int box[2] = { PART_ROWS, SLAB_COLS };
    params->n_segments = 0;
    for (; *next_io < args->n_segments && params->n_segments < SEGMENTS_MAX; (*next_io)++) {
        const int64_t begin = args->segments[*next_io], end = args->segments[*next_io + 1];
        if (begin == end) continue;
        int at = params->n_segments++;
        for (; at > 0 && params->segments[at - 1].n_rows < end - begin; at--)
            params->segments[at] = params->segments[at - 1];
        segment_desc *segment = &params->segments[at];
        const int64_t shape[2] = { end - begin, row_values };
        if (!m2_sm90_map_bf16(&segment->k, (gpu_bf16 *)args->k->data + begin * row_values, 2, shape,
                              box) ||
            !m2_sm90_map_bf16(&segment->v, (gpu_bf16 *)args->v->data + begin * row_values, 2, shape,
                              box))
            return 0;
        segment->first_row = (int)begin;
        segment->n_rows = (int)(end - begin);
    }
    order_items(params);
    return 1;
}

/* Rows times heads, so that the marks fit the workspace, with room for segments' ragged ends. */
#define PAIRS_MAX ((int64_t)64 << 20)

static int is_ours(const m2_gpu *gpu, const m2_attention_args *args)
{
    return args->q->dtype == M2_BF16 && args->q->shape[2] == DIM && !args->is_causal &&
           args->scale > 0.0f && gpu->smem_max >= SHARED_BYTES && gpu->n_mps >= BLOCKS &&
           args->q->shape[0] * args->q->shape[1] <= PAIRS_MAX;
}

/* gate: NULL, or what joins the attention's result, which goes to the gate's rows in its order then. */
static int launch(m2_gpu *gpu, const m2_attention_args *args, const m2_attention_gate_args *gate,
                  const m2_tensor *places)
{
    if (!is_ours(gpu, args)) return 0;
    const int64_t shape[2] = { args->q->shape[0], args->q->shape[1] * DIM };
    const int box[2] = { QUERIES, SLAB_COLS };
    attention_params params;
    if (!m2_sm90_map_bf16(&params.q, args->q->data, 2, shape, box)) return 0;
    params.n_heads = (int)args->q->shape[1];
    params.queries_per_key = (int)(args->q->shape[1] / args->k->shape[1]);
    params.n_sinks = args->sinks ? (int)args->sinks->shape[0] : 0;
    params.sinks = args->sinks ? (const float *)args->sinks->data : NULL;
    params.scale = args->scale * LOG2_E;
    params.y = (gpu_bf16 *)(gate ? gate->y : args->y)->data;
    params.places = gate ? (const int32_t *)places->data : NULL;
    params.gates = gate ? (const gpu_bf16 *)gate->g->data : NULL;
    params.marks = (item_marks *)gpu->workspace;
    params.has_marks = (uint32_t *)((char *)gpu->workspace + M2_GPU_WORKSPACE_BYTES) - gpu->n_mps;
    gpuFuncSetAttribute(attention_kernel, gpuFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    for (int next = 0; next < args->n_segments;) {
        if (!describe_segments(&params, args, &next)) return 0;
        if (params.n_items == 0) continue;
        const int most = gpu->n_mps / BLOCKS;
        const int n_clusters = params.n_items < most ? params.n_items : most;
        attention_kernel<<<n_clusters * BLOCKS, BLOCK_THREADS, SHARED_BYTES, gpu->stream>>>(params);
        m2_gpu_launched(gpu, gate ? "attention_gated" : "attention");
    }
    return 1;
}

extern "C" int m2_sm90_attention(m2_gpu *gpu, const m2_attention_args *args)
{
    return launch(gpu, args, NULL, NULL);
}

extern "C" int m2_sm90_attention_gated(m2_gpu *gpu, const m2_attention_gated_args *args)
{
    const m2_attention_gate_args *gate = &args->gate;
    if (gate->g->dtype != M2_BF16 || gate->y->dtype != M2_BF16) return 0;
    return launch(gpu, &args->attention, gate, args->row);
}
