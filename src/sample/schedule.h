/* schedule.h - the sigmas of a run: how noisy the latent is before each step.
 *
 *   s_i     = sigma_max * (1 - i / n)                     i = 0 ... n - 1, in f64
 *   sigma_i = shift * s_i / (1 + (shift - 1) * s_i)       in f64, then f32;  sigma_n = 0
 *   t_i     = floor(1000 * sigma_i)                       of the f64 sigma
 *
 * sigma_max is the f32 nearest to 0.999, held in f64.
 *
 * The model is shown t_i / 1000, the solver uses sigma_i.  The reference truncates the timestep to an
 * integer; with shift 7 the first step would else be 999.86 where the reference feeds 999.  Its
 * search for the first timestep starts at step 1 when the first two are equal, and fails at the end;
 * here a run always starts at step 0.
 */
#ifndef M2_SAMPLE_SCHEDULE_H
#define M2_SAMPLE_SCHEDULE_H

#include "core/status.h"

/* Errors  M2_ERR_ARG: no steps, a shift that is not above 0, or so many steps or such a shift that
 *         two sigmas are one f32, or leave the open interval from 0 to 1. */
m2_status m2_schedule_check(int n_steps, double shift);

/* For a schedule that m2_schedule_check took.  step 0 ... n_steps; the sigma of n_steps is 0. */
float m2_schedule_sigma(int n_steps, double shift, int step);
/* step 0 ... n_steps - 1 */
int m2_schedule_timestep(int n_steps, double shift, int step);
/* All of them, to timesteps_out [n_steps]. */
void m2_schedule_timesteps(int n_steps, double shift, int *timesteps_out);

#endif
