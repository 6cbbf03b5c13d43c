#include "core/rng.h"

#include "core/dmath.h"
#include "core/fmath.h"

#include <assert.h>

#define BLOCK_THREADS 256
#define TWO_PI_F      0x1.921fb6p+2f
/* Philox calls of one piece of work. */
#define CHUNK_CALLS 4096

/* ---- device generator ---- */

m2_status m2_rng_init(m2_rng *rng, uint64_t seed, m2_rng_grid grid)
{
    if (grid.n_multiprocessors < 1 || grid.n_multiprocessors > M2_RNG_MULTIPROCESSORS_MAX ||
        grid.threads_max_per_multiprocessor < BLOCK_THREADS ||
        grid.threads_max_per_multiprocessor > M2_RNG_THREADS_MAX)
        return m2_fail(M2_ERR_ARG,
                       "noise grid %dx%d: needs 1 to %d multiprocessors of %d to %d threads, "
                       "such as 132x2048 (H100, H200)",
                       grid.n_multiprocessors, grid.threads_max_per_multiprocessor,
                       M2_RNG_MULTIPROCESSORS_MAX, BLOCK_THREADS, M2_RNG_THREADS_MAX);
    *rng = (m2_rng){ .seed = seed, .grid = grid };
    return M2_OK;
}

static void philox(uint64_t seed, uint64_t call, uint64_t thread, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)call, c1 = (uint32_t)(call >> 32);
    uint32_t c2 = (uint32_t)thread, c3 = (uint32_t)(thread >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Two normals of two words.  The uniform numbers are f32, as on the device: near u = 1 the radius
 * depends on how u was rounded. */
static void box_muller(uint32_t x, uint32_t y, float *sine_out, float *cosine_out)
{
    const float u = fmaf((float)x, 0x1p-32f, 0x1p-33f);
    const float v = fmaf((float)y, TWO_PI_F * 0x1p-32f, TWO_PI_F * 0x1p-33f);
    const float radius = sqrtf(-2.0f * m2_logf(u));
    *sine_out = radius * m2_sinf(v);
    *cosine_out = radius * m2_cosf(v);
}

typedef struct draw_loop {
    const m2_rng *rng;
    float *values;
    int64_t n, n_grid;
} draw_loop;

/* Items are (round, thread) pairs; each makes four values, one grid apart. */
static void draw_calls(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const draw_loop *loop = context;
    for (int64_t call = begin; call < end; call++) {
        const int64_t round = call / loop->n_grid, thread = call % loop->n_grid;
        const int64_t first = round * 4 * loop->n_grid + thread;
        if (first >= loop->n) continue;
        uint32_t words[4];
        float normals[4];
        philox(loop->rng->seed, loop->rng->offset / 4 + (uint64_t)round, (uint64_t)thread, words);
        box_muller(words[0], words[1], &normals[0], &normals[1]);
        box_muller(words[2], words[3], &normals[2], &normals[3]);
        for (int lane = 0; lane < 4; lane++) {
            const int64_t i = first + lane * loop->n_grid;
            if (i < loop->n) loop->values[i] = normals[lane];
        }
    }
}

void m2_rng_normal(m2_rng *rng, m2_pool *pool, float *values_out, int64_t n)
{
    assert(n >= 0);
    if (n == 0) return;
    const int64_t n_blocks_max = (int64_t)rng->grid.n_multiprocessors *
                                 (rng->grid.threads_max_per_multiprocessor / BLOCK_THREADS);
    const int64_t n_blocks_needed = (n - 1) / BLOCK_THREADS + 1;
    const int64_t n_blocks = n_blocks_needed < n_blocks_max ? n_blocks_needed : n_blocks_max;
    draw_loop loop = {
        .rng = rng, .values = values_out, .n = n, .n_grid = n_blocks * BLOCK_THREADS
    };
    const int64_t n_rounds = (n - 1) / (4 * loop.n_grid) + 1;
    m2_parallel_for(pool, n_rounds * loop.n_grid, CHUNK_CALLS, draw_calls, &loop);
    rng->offset += 4 * (uint64_t)n_rounds;
}

/* ---- CPU generator ---- */

#define MT_SHIFT 397

void m2_cpu_rng_init(m2_cpu_rng *rng, uint64_t seed)
{
    *rng = (m2_cpu_rng){ .n_used = M2_MT_WORDS };
    uint32_t word = (uint32_t)seed;
    for (uint32_t i = 0; i < M2_MT_WORDS; i++) {
        if (i > 0) word = 1812433253u * (word ^ (word >> 30)) + i;
        rng->words[i] = word;
    }
}

static void mt_refill(m2_cpu_rng *rng)
{
    uint32_t *w = rng->words;
    for (int i = 0; i < M2_MT_WORDS; i++) {
        const uint32_t both = (w[i] & 0x80000000u) | (w[(i + 1) % M2_MT_WORDS] & 0x7fffffffu);
        w[i] = w[(i + MT_SHIFT) % M2_MT_WORDS] ^ (both >> 1) ^ (both & 1u ? 0x9908b0dfu : 0u);
    }
    rng->n_used = 0;
}

static uint32_t mt_next(m2_cpu_rng *rng)
{
    if (rng->n_used == M2_MT_WORDS) mt_refill(rng);
    uint32_t y = rng->words[rng->n_used++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

static float mt_uniform_f32(m2_cpu_rng *rng)
{
    return (float)(mt_next(rng) & 0xffffffu) * 0x1p-24f;
}

static double mt_uniform_f64(m2_cpu_rng *rng)
{
    const uint64_t high = mt_next(rng);
    const uint64_t word = high << 32 | mt_next(rng);
    return (double)(word & (((uint64_t)1 << 53) - 1)) * 0x1p-53;
}

/* Eight radii from the first half, eight angles from the second, in place. */
static void box_muller_16(float values[16])
{
    for (int j = 0; j < 8; j++) {
        const float radius = sqrtf(-2.0f * m2_logf(1.0f - values[j]));
        const float angle = TWO_PI_F * values[j + 8];
        values[j] = radius * m2_cosf(angle);
        values[j + 8] = radius * m2_sinf(angle);
    }
}

static float next_single_normal(m2_cpu_rng *rng)
{
    if (rng->has_next) {
        rng->has_next = 0;
        return (float)rng->next_normal;
    }
    const double angle = 0x1.921fb54442d18p+2 * mt_uniform_f64(rng);
    const double radius = sqrt(-2.0 * m2_log64(1.0 - mt_uniform_f64(rng)));
    rng->next_normal = radius * m2_sin64(angle);
    rng->has_next = 1;
    return (float)(radius * m2_cos64(angle));
}

void m2_cpu_rng_normal(m2_cpu_rng *rng, float *values_out, int64_t n)
{
    assert(n >= 0);
    if (n < 16) {
        for (int64_t i = 0; i < n; i++) values_out[i] = next_single_normal(rng);
        return;
    }
    for (int64_t i = 0; i < n; i++) values_out[i] = mt_uniform_f32(rng);
    for (int64_t i = 0; i + 16 <= n; i += 16) box_muller_16(values_out + i);
    if (n % 16 != 0) {
        /* The last 16 values are drawn anew, as one block over the end of the last whole one. */
        float *last = values_out + n - 16;
        for (int i = 0; i < 16; i++) last[i] = mt_uniform_f32(rng);
        box_muller_16(last);
    }
}
