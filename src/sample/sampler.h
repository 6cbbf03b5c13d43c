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
 * Why         every coefficient depends on the step alone and is computed on the host, in f64 from
 *             the f32 sigmas, so a step only queues element-wise work: the loop never waits for the
 *             device.
 * Numerics    every product and sum over the latent is one f32 operation in the reference's order.
 * Threads     one sampler, one thread; different samplers are independent.
 */
#ifndef M2_SAMPLE_SAMPLER_H
#define M2_SAMPLE_SAMPLER_H

#include "backend/ops.h"

typedef struct m2_sampler m2_sampler;
typedef struct m2_sampler_params {
    int64_t n_elems; /* elements of the latent, all dimensions multiplied, >= 1     */
    int n_steps;     /* denoising steps, >= 1 (100 preview, 5 refiner)              */
    double shift;    /* sigma shift, > 0; the larger, the more steps spent on noise */
} m2_sampler_params;

/* Lay out a sampler in `arena`; it lives until that arena is reset.  `ops` is borrowed.
 * On a measuring arena it takes its room and *sampler_out is NULL: such a sampler has sigma and
 * timestep 0 and a history without data, and its steps do nothing.
 * Out     *sampler_out, written only on M2_OK
 * Errors  M2_ERR_ARG (parameter out of range) */
m2_status m2_sampler_create(m2_arena *arena, const m2_ops *ops, const m2_sampler_params *params,
                            m2_sampler **sampler_out);

/* Sigma that the latent stands at now; 0 once all steps are done. */
float m2_sampler_sigma(const m2_sampler *sampler);
/* What the model is shown in this step: an integer, to be divided by 1000.  0 when all is done. */
int m2_sampler_timestep(const m2_sampler *sampler);
/* Steps done so far. */
int m2_sampler_step_idx(const m2_sampler *sampler);

/* Advance `latent` by one step.  Call n_steps times; one more is a bug and aborts.
 *   latent    [n_elems] f32 of any shape, in/out, borrowed for the call
 *   velocity  [n_elems] f32, after guidance; must not overlap latent */
void m2_sampler_step(m2_sampler *sampler, m2_tensor *latent, const m2_tensor *velocity);

/* What a later process needs beside the latent to go on with the same bits: the steps done, and
 * three arrays [n_elems] f32.  Get them to save them; to go on, m2_sampler_resume a new sampler of
 * the same parameters and fill its arrays with what was saved. */
#define M2_SAMPLER_N_HISTORY 3
void m2_sampler_history(const m2_sampler *sampler, m2_tensor history_out[M2_SAMPLER_N_HISTORY]);
/* Errors  M2_ERR_ARG: n_done is not 0 ... n_steps (it comes from a file). */
m2_status m2_sampler_resume(m2_sampler *sampler, int n_done);

#endif
