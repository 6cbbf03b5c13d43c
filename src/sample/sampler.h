/* sampler.h - turns noise into a clean latent, one flow-matching step at a time.
 *
 * Owns the sigma schedule and the multistep history of ONE latent; video and audio each have their
 * own sampler and share no state.  Knows no network and no rank: it is handed a velocity and gives
 * back the next latent, so a closed-form field can test it.
 *
 * Convention  latent = (1 - sigma) * clean + sigma * noise,  velocity = noise - clean;
 *             sigma falls from almost 1 (noise) to 0 (clean);  timestep = floor(1000 * sigma).
 * Source      UniPC, order 2, B2(h), predicting the clean latent, corrector in every step:
 *             arXiv:2302.04867.
 * Why         every coefficient depends on the step alone: all are computed on the host at the start,
 *             in f64 from the f32 sigmas, and stand in a table on the device.  A step is one operator
 *             that finds its row by a counter there, so the loop never waits for the device and a
 *             recorded step can be replayed.
 * Numerics    every product and sum over the latent is one f32 operation in the reference's order.
 * Threads     one sampler, one thread; different samplers are independent.
 */
#ifndef M2_SAMPLE_SAMPLER_H
#define M2_SAMPLE_SAMPLER_H

#include "backend/ops.h"
#include "core/status.h"

#define M2_SAMPLER_N_CLEAN 3

typedef struct m2_sampler_params {
    int64_t n_elems; /* elements of the latent, all dimensions multiplied, >= 1     */
    int n_steps;     /* denoising steps, >= 1 (100 preview, 5 refiner)              */
    double shift;    /* sigma shift, > 0; the larger, the more steps spent on noise */
    /* [1] i32 on the device, borrowed: the steps done.  Who owns it sets it and, after the steps of
     * all that share it, advances it. */
    const m2_tensor *step;
} m2_sampler_params;

/* Nothing here changes from step to step: all of that is on the device. */
typedef struct m2_sampler {
    const m2_ops *ops;
    m2_sampler_params params;
    m2_tensor table;                     /* [n_steps, M2_UNIPC_COEFFS] f32                 */
    m2_tensor clean[M2_SAMPLER_N_CLEAN]; /* step k's clean latent is in clean[k % 3]       */
    m2_tensor start;                     /* what the last predictor started from           */
} m2_sampler;

/* Lays out in `arena` what the sampler keeps; it is good until that arena is reset.  `ops` is
 * borrowed.  On a measuring arena it takes its room and computes nothing.
 * Out     *sampler, written only on M2_OK
 * Errors  M2_ERR_ARG (parameter out of range), M2_ERR_MEMORY */
m2_status m2_sampler_init(m2_sampler *sampler, m2_arena *arena, const m2_ops *ops,
                          const m2_sampler_params *params);

/* Advance `latent` by step number *params.step, 0 to n_steps - 1; the counter stays as it is.
 *   latent    [n_elems] f32 of any shape, in/out, borrowed for the call
 *   velocity  [n_elems] f32, after guidance; must not overlap latent */
void m2_sampler_step(m2_sampler *sampler, m2_tensor *latent, const m2_tensor *velocity);

/* What a later process needs beside the latent to go on with the same bits after `n_done` steps:
 * three arrays [n_elems] f32.  Get them to save them; to go on, fill those of a new sampler of the
 * same parameters with what was saved. */
#define M2_SAMPLER_N_HISTORY 3
void m2_sampler_history(const m2_sampler *sampler, int n_done,
                        m2_tensor history_out[M2_SAMPLER_N_HISTORY]);

#endif
