#include "sample/sampler.h"

#include "core/dmath.h"
#include "sample/schedule.h"

#include <assert.h>

#define N_CLEAN 3

struct m2_sampler {
    const m2_ops *ops;
    m2_sampler_params params;
    int step; /* steps done; the next one to do */
    /* The clean latent that step k predicted is in clean[k % 3], until step k + 2 is done with it;
     * from then on the buffer is scratch. */
    m2_tensor clean[N_CLEAN];
    m2_tensor start; /* what the last predictor started from: the corrected latent */
};

/* From sigma_from to sigma_to:  latent = ratio * start - gain * clean - gain * (slopes) */
typedef struct unipc_move {
    double h;    /* step in log signal-to-noise */
    double e;    /* expm1(-h), also B(h)        */
    float ratio; /* sigma_to / sigma_from       */
    float gain;  /* alpha_to * e                */
} unipc_move;

static float sigma_of(const m2_sampler *sampler, int step)
{
    return m2_schedule_sigma(sampler->params.n_steps, sampler->params.shift, step);
}

/* Half of the log signal-to-noise ratio at a step before the last. */
static double lambda_of(const m2_sampler *sampler, int step)
{
    const double sigma = sigma_of(sampler, step);
    return m2_log64(1.0 - sigma) - m2_log64(sigma);
}

static unipc_move move_between(const m2_sampler *sampler, int from, int to)
{
    const double sigma_from = sigma_of(sampler, from), sigma_to = sigma_of(sampler, to);
    unipc_move move;
    move.h = lambda_of(sampler, to) - lambda_of(sampler, from);
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

static void combine(const m2_sampler *sampler, m2_tensor *out, int n_terms,
                    const m2_tensor *const terms[], const float coefficients[])
{
    m2_combine_args args = { .n_terms = n_terms, .out = out };
    for (int i = 0; i < n_terms; i++) {
        args.terms[i] = terms[i];
        args.coefficients[i] = coefficients[i];
    }
    sampler->ops->combine(sampler->ops, &args);
}
#define COMBINE2(sampler, out, a, x, b, y)                                                         \
    combine((sampler), (out), 2, (const m2_tensor *[]){ (x), (y) }, (const float[]){ (a), (b) })

static void scale(const m2_sampler *sampler, m2_tensor *out, float factor, const m2_tensor *x)
{
    combine(sampler, out, 1, &x, &factor);
}

/* latent = ratio * start - gain * clean - slope_gain * slope */
static void apply_move(const m2_sampler *sampler, const unipc_move *move, m2_tensor *latent,
                       const m2_tensor *start, const m2_tensor *clean, float slope_gain,
                       const m2_tensor *slope)
{
    const m2_tensor *const terms[] = { start, clean, slope };
    const float coefficients[] = { move->ratio, -move->gain, -slope_gain };
    combine(sampler, latent, slope ? 3 : 2, terms, coefficients);
}

/* Do the last move again, now that the clean latent of its end is known: replaces `latent`. */
static void correct(m2_sampler *sampler, m2_tensor *latent)
{
    const int k = sampler->step;
    const unipc_move move = move_between(sampler, k - 1, k);
    const m2_tensor *now = &sampler->clean[k % N_CLEAN];
    const m2_tensor *before = &sampler->clean[(k - 1) % N_CLEAN];
    m2_tensor *slope = latent; /* its old value is in `now` already */
    COMBINE2(sampler, slope, 1.0f, now, -1.0f, before);
    if (k == 1) {
        apply_move(sampler, &move, latent, &sampler->start, before, 0.5f * move.gain, slope);
        return;
    }
    const double r = (lambda_of(sampler, k - 2) - lambda_of(sampler, k - 1)) / move.h;
    float rho0, rho1;
    corrector_weights(&move, r, &rho0, &rho1);
    m2_tensor *older = &sampler->clean[(k - 2) % N_CLEAN]; /* its last use */
    COMBINE2(sampler, older, 1.0f, older, -1.0f, before);
    scale(sampler, older, (float)(1.0 / r), older);
    COMBINE2(sampler, slope, rho0, older, rho1, slope);
    apply_move(sampler, &move, latent, &sampler->start, before, move.gain, slope);
}

static void predict(m2_sampler *sampler, m2_tensor *latent)
{
    const int k = sampler->step;
    const unipc_move move = move_between(sampler, k, k + 1);
    const m2_tensor *now = &sampler->clean[k % N_CLEAN];
    scale(sampler, &sampler->start, 1.0f, latent);
    if (k == 0) {
        apply_move(sampler, &move, latent, &sampler->start, now, 0, NULL);
        return;
    }
    const double r = (lambda_of(sampler, k - 1) - lambda_of(sampler, k)) / move.h;
    m2_tensor *slope = &sampler->clean[(k + 1) % N_CLEAN]; /* scratch now */
    COMBINE2(sampler, slope, 1.0f, &sampler->clean[(k - 1) % N_CLEAN], -1.0f, now);
    scale(sampler, slope, (float)(1.0 / r), slope);
    apply_move(sampler, &move, latent, &sampler->start, now, 0.5f * move.gain, slope);
}

void m2_sampler_step(m2_sampler *sampler, m2_tensor *latent, const m2_tensor *velocity)
{
    if (!sampler) return;
    const int k = sampler->step;
    assert(k < sampler->params.n_steps);
    assert(latent->dtype == M2_F32 && m2_tensor_count(latent) == sampler->params.n_elems);
    assert(velocity->dtype == M2_F32 && m2_tensor_count(velocity) == sampler->params.n_elems);
    assert(latent->data != velocity->data);

    m2_tensor *clean = &sampler->clean[k % N_CLEAN];
    COMBINE2(sampler, clean, 1.0f, latent, -sigma_of(sampler, k), velocity);
    if (k == sampler->params.n_steps - 1) {
        /* At sigma 0 the move is onto the clean latent, whatever the corrector would say. */
        scale(sampler, latent, 1.0f, clean);
    } else {
        if (k > 0) correct(sampler, latent);
        predict(sampler, latent);
    }
    sampler->step++;
}

m2_status m2_sampler_create(m2_arena *arena, const m2_ops *ops, const m2_sampler_params *params,
                            m2_sampler **sampler_out)
{
    if (params->n_elems < 1)
        return m2_fail(M2_ERR_ARG, "a latent of %lld elements", (long long)params->n_elems);
    M2_TRY(m2_schedule_check(params->n_steps, params->shift));

    m2_sampler *sampler = m2_new(arena, m2_sampler, 1);
    m2_sampler made = { .ops = ops, .params = *params };
    for (int i = 0; i < N_CLEAN; i++)
        made.clean[i] = m2_tensor_make(arena, M2_F32, params->n_elems);
    made.start = m2_tensor_make(arena, M2_F32, params->n_elems);
    if (arena->is_measuring) {
        *sampler_out = NULL;
        return M2_OK;
    }
    *sampler = made;
    *sampler_out = sampler;
    return M2_OK;
}

float m2_sampler_sigma(const m2_sampler *sampler)
{
    return sampler ? sigma_of(sampler, sampler->step) : 0.0f;
}

int m2_sampler_timestep(const m2_sampler *sampler)
{
    if (!sampler || sampler->step == sampler->params.n_steps) return 0;
    return m2_schedule_timestep(sampler->params.n_steps, sampler->params.shift, sampler->step);
}

int m2_sampler_step_idx(const m2_sampler *sampler)
{
    return sampler ? sampler->step : 0;
}

void m2_sampler_history(const m2_sampler *sampler, m2_tensor history_out[M2_SAMPLER_N_HISTORY])
{
    for (int i = 0; i < M2_SAMPLER_N_HISTORY; i++) history_out[i] = (m2_tensor){ 0 };
    if (!sampler) return;
    /* Newest first; with fewer steps done than that, what is in them does not matter. */
    history_out[0] = sampler->clean[(sampler->step + N_CLEAN - 1) % N_CLEAN];
    history_out[1] = sampler->clean[(sampler->step + N_CLEAN - 2) % N_CLEAN];
    history_out[2] = sampler->start;
}

m2_status m2_sampler_resume(m2_sampler *sampler, int n_done)
{
    if (!sampler) return M2_OK;
    if (n_done < 0 || n_done > sampler->params.n_steps)
        return m2_fail(M2_ERR_ARG, "%d steps done of a run of %d", n_done, sampler->params.n_steps);
    sampler->step = n_done;
    return M2_OK;
}
