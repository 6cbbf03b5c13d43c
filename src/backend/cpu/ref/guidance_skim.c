/* guidance_skim.c - "skimmed" guidance, linear: where the guided prediction would overshoot, the
 * unconditional one is moved towards the conditional one before the mix.
 *
 *   w = (skim - 1) / (s - 1),  T(c, u) = c (1 - w) + u w
 *   M(x, c, u) = sign(c - u) == sign(c)  and  sign(c) == sign(c s - u (s - 1))
 *                and  sign(d) == sign(d - x),  d = x - ((x - u) + s ((x - c) - (x - u)))
 *   u := T(c, u) where M(x, c, u);  then, with the new u,  u := T(c, u) where M(x, u, c)
 *
 * Only where s > 1, and not at all if every u is zero (there is no unconditional branch).  The masks
 * are choices: every operation is rounded alone, as the reference does, so that they fall alike. */
#include "backend/cpu/ref/guidance_scale.h"
#include "backend/cpu/ref/ref.h"

#include <stdbool.h>

typedef struct skim_loop {
    const float *cond, *latent;
    float *uncond;
    float skim_scale;
    m2_guidance_pieces pieces;
} skim_loop;

static int sign_of(float x)
{
    return (x > 0) - (x < 0);
}

static bool overshoots(float x, float c, float u, float s)
{
    if (sign_of(c - u) != sign_of(c)) return false;
    const float guided_c = c * s, guided_u = u * (s - 1.0f);
    if (sign_of(c) != sign_of(guided_c - guided_u)) return false;
    const float clean_c = x - c, clean_u = x - u;
    const float guided = clean_u + s * (clean_c - clean_u);
    const float d = x - guided;
    return sign_of(d) == sign_of(d - x);
}

static float towards(float c, float u, float w)
{
    const float from_c = c * (1.0f - w), from_u = u * w;
    return from_c + from_u;
}

static void skim_pieces(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const skim_loop *loop = context;
    for (int64_t piece = begin; piece < end; piece++) {
        int64_t first, last;
        const float s = m2_guidance_piece(&loop->pieces, piece, &first, &last);
        if (!(s > 1.0f)) continue;
        const float w = (loop->skim_scale - 1.0f) / (s - 1.0f);
        for (int64_t i = first; i < last; i++) {
            const float x = loop->latent[i], c = loop->cond[i];
            float u = loop->uncond[i];
            if (overshoots(x, c, u, s)) u = towards(c, u, w);
            if (overshoots(x, u, c, s)) u = towards(c, u, w);
            loop->uncond[i] = u;
        }
    }
}

static bool is_all_zero(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (x[i] != 0) return false;
    }
    return true;
}

void m2_ref_guidance_skim(const m2_ops *ops, const m2_guidance_skim_args *args)
{
    skim_loop loop = { .cond = args->cond->data,
                       .latent = args->latent->data,
                       .uncond = args->uncond->data,
                       .skim_scale = args->skim_scale,
                       .pieces = m2_guidance_cut(args->cond, args->scale, args->step) };
    assert(args->cond->dtype == M2_F32 && args->latent->dtype == M2_F32 &&
           args->uncond->dtype == M2_F32);
    assert(m2_tensor_count(args->latent) == loop.pieces.n &&
           m2_tensor_count(args->uncond) == loop.pieces.n);
    if (is_all_zero(loop.uncond, loop.pieces.n)) return;
    m2_parallel_for(ops->pool, loop.pieces.n_pieces, 4, skim_pieces, &loop);
}
