/* rng.h - PyTorch's normal numbers, so that a seed means here what it means there.
 *
 * m2_rng      the generator of CUDA devices: Philox4x32-10, keyed by the seed; every call draws as
 *             one kernel launch does, so the values depend on the card's launch grid.  The pipeline
 *             draws the video latent, the audio latent and the refiner's video noise in turn.
 * m2_cpu_rng  the generator of the CPU: the Mersenne twister MT19937, in PyTorch's two ways of
 *             making normals from it.
 *
 * Values agree with PyTorch to 2e-6, not bit for bit: the device's sine and cosine are fast
 * intrinsics.  Ours come from fmath.h, so every backend starts from the same bits.
 *
 * Source   Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (Philox);
 *          Matsumoto and Nishimura 1998 (MT19937); Box and Muller 1958.
 * Threads  one generator, one thread; a draw spreads over the pool, with the same bits.
 */
#ifndef M2_CORE_RNG_H
#define M2_CORE_RNG_H

#include <stdint.h>

#include "core/threads.h"

/* The launch grid of a card: threads of one draw = 256 * min(blocks that fit, blocks needed). */
typedef struct m2_rng_grid {
    int n_multiprocessors;              /* 132 on H100 and H200 */
    int threads_max_per_multiprocessor; /* 2048 on those        */
} m2_rng_grid;

/* The grid that noise is drawn on unless another is asked for: H100 and H200. */
#define M2_RNG_GRID_DEFAULT ((m2_rng_grid){ 132, 2048 })
/* Limits of what m2_rng_init takes: no card comes near them. */
#define M2_RNG_MULTIPROCESSORS_MAX 65536
#define M2_RNG_THREADS_MAX         65536

typedef struct m2_rng {
    uint64_t seed;
    uint64_t offset; /* of the next draw, as PyTorch counts: 4 for every Philox call of a thread */
    m2_rng_grid grid;
} m2_rng;

/* Errors  M2_ERR_ARG: the grid has no block of 256 threads, or is beyond any card. */
m2_status m2_rng_init(m2_rng *rng, uint64_t seed, m2_rng_grid grid);

/* randn(n) on the device: f32 normals to values_out [n], n >= 0.  `pool` may be NULL. */
void m2_rng_normal(m2_rng *rng, m2_pool *pool, float *values_out, int64_t n);

#define M2_MT_WORDS 624
typedef struct m2_cpu_rng {
    uint32_t words[M2_MT_WORDS];
    int n_used;   /* words of this round that were given out              */
    int has_next; /* a second normal is kept, for the next draw below 16  */
    double next_normal;
} m2_cpu_rng;

/* Only the low 32 bits of the seed count, as in PyTorch. */
void m2_cpu_rng_init(m2_cpu_rng *rng, uint64_t seed);

/* randn(n) on the CPU: f32 normals to values_out [n], n >= 0. */
void m2_cpu_rng_normal(m2_cpu_rng *rng, float *values_out, int64_t n);

#endif
