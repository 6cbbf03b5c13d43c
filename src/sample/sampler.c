#include "sample/sampler.h"

#include "core/dmath.h"
#include "sample/schedule.h"

#include <assert.h>
#include <stdlib.h>

/* From sigma_from to sigma_to:  latent = ratio * start - gain * clean - gain * (slopes) */
typedef struct unipc_move {
    double h;    /* step in log signal-to-noise */
    double e;    /* expm1(-h), also B(h)        */
    float ratio; /* sigma_to / sigma_from       */
    float gain;  /* alpha_to * e                */
} unipc_move;

static float sigma_of(const m2_sampler_params *params, int step)
{
    return m2_schedule_sigma(params->n_steps, params->shift, step);
}

/* Half of the log signal-to-noise ratio at a step before the last. */
static double lambda_of(const m2_sampler_params *params, int step)
{
    const double sigma = sigma_of(params, step);
    return m2_log64(1.0 - sigma) - m2_log64(sigma);
}

static unipc_move move_between(const m2_sampler_params *params, int from, int to)
{
    const double sigma_from = sigma_of(params, from), sigma_to = sigma_of(params, to);
    unipc_move move;
    move.h = lambda_of(params, to) - lambda_of(params, from);
    move.e = m2_expm1_64(-move.h);
    move.ratio = (float)(sigma_to / sigma_from);
    move.gain = (float)((1.0 - sigma_to) * move.e);
    return move;
}

/* (e^u - 1) / u - 1 and that over u, minus 1/2; as series where the differences would cancel. */
static void phi_functions(double u, double e, double *phi_out, double *phi2_out)
{
    if (u < -1.0) {
        *phi_out = e / u - 1.0;
        *phi2_out = *phi_out / u - 0.5;
        return;
    }
    double sum = 0; /* u / 3! + u^2 / 4! + ... */
    for (int k = 20; k >= 4; k--) sum = (sum + 1.0) * u / k;
    *phi2_out = (sum + 1.0) * u / 6.0;
    *phi_out = u * (*phi2_out + 0.5);
}

/* Weights of the two slopes in the corrector of order 2: rho0 + rho1 = b1, r rho0 + rho1 = b2. */
static void corrector_weights(const unipc_move *move, double r, float *rho0_out, float *rho1_out)
{
    double phi, phi2;
    phi_functions(-move->h, move->e, &phi, &phi2);
    const double b1 = phi / move->e, b2 = 2.0 * phi2 / move->e;
    const double rho0 = (b1 - b2) / (1.0 - r);
    *rho0_out = (float)rho0;
    *rho1_out = (float)(b1 - rho0);
}

/* Do the move from k - 1 to k again, now that the clean latent of its end is known. */
static void corrector_row(const m2_sampler_params *params, int k, float row[M2_UNIPC_COEFFS])
{
    const unipc_move move = move_between(params, k - 1, k);
    row[M2_UNIPC_CORRECTOR] = k == 1 ? 1.0f : 2.0f;
    row[M2_UNIPC_CORRECTOR_START] = move.ratio;
    row[M2_UNIPC_CORRECTOR_LAST] = -move.gain;
    row[M2_UNIPC_CORRECTOR_SLOPE] = k == 1 ? -(0.5f * move.gain) : -move.gain;
    if (k == 1) return;
    const double r = (lambda_of(params, k - 2) - lambda_of(params, k - 1)) / move.h;
    row[M2_UNIPC_INVERSE_R] = (float)(1.0 / r);
    corrector_weights(&move, r, &row[M2_UNIPC_RHO_OLDER], &row[M2_UNIPC_RHO_NOW]);
}

static void predictor_row(const m2_sampler_params *params, int k, float row[M2_UNIPC_COEFFS])
{
    const unipc_move move = move_between(params, k, k + 1);
    row[M2_UNIPC_PREDICTOR] = k == 0 ? 1.0f : 2.0f;
    row[M2_UNIPC_PREDICTOR_START] = move.ratio;
    row[M2_UNIPC_PREDICTOR_NOW] = -move.gain;
    if (k == 0) return;
    const double r = (lambda_of(params, k - 1) - lambda_of(params, k)) / move.h;
    row[M2_UNIPC_PREDICTOR_SLOPE] = -(0.5f * move.gain);
    row[M2_UNIPC_PREDICTOR_INVERSE_R] = (float)(1.0 / r);
}

/* At sigma 0 the last move is onto the clean latent, whatever the corrector would say. */
static void fill_row(const m2_sampler_params *params, int k, float row[M2_UNIPC_COEFFS])
{
    for (int i = 0; i < M2_UNIPC_COEFFS; i++) row[i] = 0.0f;
    row[M2_UNIPC_MINUS_SIGMA] = -sigma_of(params, k);
    if (k == params->n_steps - 1) return;
    if (k > 0) corrector_row(params, k, row);
    predictor_row(params, k, row);
}

static m2_status upload_table(m2_sampler *sampler)
{
    const m2_sampler_params *params = &sampler->params;
    float *rows = malloc(m2_tensor_bytes(&sampler->table));
    if (!rows)
        return m2_fail(M2_ERR_MEMORY, "sampler: no memory for the coefficients of %d steps",
                       params->n_steps);
    for (int k = 0; k < params->n_steps; k++) fill_row(params, k, rows + k * M2_UNIPC_COEFFS);
    sampler->ops->upload(sampler->ops, &sampler->table, rows);
    free(rows);
    return M2_OK;
}

m2_status m2_sampler_init(m2_sampler *sampler, m2_arena *arena, const m2_ops *ops,
                          const m2_sampler_params *params)
{
    if (params->n_elems < 1)
        return m2_fail(M2_ERR_ARG, "a latent of %lld elements", (long long)params->n_elems);
    M2_TRY(m2_schedule_check(params->n_steps, params->shift));

    m2_sampler made = { .ops = ops, .params = *params };
    made.table = m2_tensor_make(arena, M2_F32, params->n_steps, M2_UNIPC_COEFFS);
    for (int i = 0; i < M2_SAMPLER_N_CLEAN; i++)
        made.clean[i] = m2_tensor_make(arena, M2_F32, params->n_elems);
    made.start = m2_tensor_make(arena, M2_F32, params->n_elems);
    if (!arena->is_measuring) M2_TRY(upload_table(&made));
    *sampler = made;
    return M2_OK;
}

void m2_sampler_step(m2_sampler *sampler, m2_tensor *latent, const m2_tensor *velocity)
{
    assert(latent->dtype == M2_F32 && m2_tensor_count(latent) == sampler->params.n_elems);
    assert(velocity->dtype == M2_F32 && m2_tensor_count(velocity) == sampler->params.n_elems);
    assert(latent->data != velocity->data);
    m2_tensor *clean = sampler->clean;
    sampler->ops->unipc_step(sampler->ops,
                             &(m2_unipc_step_args){ .velocity = velocity,
                                                    .table = &sampler->table,
                                                    .step = sampler->params.step,
                                                    .clean = { &clean[0], &clean[1], &clean[2] },
                                                    .start = &sampler->start,
                                                    .latent = latent });
}

void m2_sampler_history(const m2_sampler *sampler, int n_done,
                        m2_tensor history_out[M2_SAMPLER_N_HISTORY])
{
    assert(n_done >= 0 && n_done <= sampler->params.n_steps);
    /* Newest first; with fewer steps done than that, what is in them does not matter. */
    history_out[0] = sampler->clean[(n_done + 2) % M2_SAMPLER_N_CLEAN];
    history_out[1] = sampler->clean[(n_done + 1) % M2_SAMPLER_N_CLEAN];
    history_out[2] = sampler->start;
}
