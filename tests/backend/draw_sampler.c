/* draw_sampler.c - cases of the operators between two calls of a network. */
#include "backend/draw.h"

typedef struct guidance_case {
    m2_tensor cond, uncond, latent, scale, step;
} guidance_case;

static m2_tensor draw_step(random_case *c, int64_t n_steps)
{
    m2_tensor step = m2_tensor_make(&c->arena, M2_I32, 1);
    *(int32_t *)step.data = (int32_t)random_int(c, 0, n_steps - 1);
    return step;
}

static guidance_case draw_guidance(random_case *c)
{
    guidance_case g;
    const int64_t channels = random_int(c, 1, 50), frames = random_int(c, 1, 9);
    const int64_t inner = draw_size(c, 300);
    g.cond = draw_tensor(c, M2_F32, 1, channels, frames, inner);
    g.uncond = draw_tensor(c, M2_F32, 1, channels, frames, inner);
    g.latent = draw_tensor(c, M2_F32, 1, channels, frames, inner);
    const int64_t n_steps = random_int(c, 1, 5);
    g.scale = random_tensor(c, M2_F32, 3, n_steps, random_int(c, 0, 1) ? frames : 1);
    g.step = draw_step(c, n_steps);
    return g;
}

void draw_guidance_mix(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    guidance_case g = draw_guidance(c);
    *y_out = random_int(c, 0, 1) ? g.uncond
                                 : m2_tensor_make(&c->arena, M2_F32, g.cond.shape[0],
                                                  g.cond.shape[1], g.cond.shape[2]);
    ops->guidance_mix(
        ops,
        &(m2_guidance_mix_args){
            .cond = &g.cond, .uncond = &g.uncond, .scale = &g.scale, .step = &g.step, .v = y_out });
}

void draw_guidance_skim(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    guidance_case g = draw_guidance(c);
    if (random_int(c, 0, 4) == 0) memset(g.uncond.data, 0, m2_tensor_bytes(&g.uncond));
    *y_out = g.uncond;
    ops->guidance_skim(ops, &(m2_guidance_skim_args){ .cond = &g.cond,
                                                      .latent = &g.latent,
                                                      .scale = &g.scale,
                                                      .step = &g.step,
                                                      .skim_scale = 3.0f,
                                                      .uncond = y_out });
}

void draw_guidance_rescale(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const int is_last = (int)random_int(c, 0, 1);
    const int64_t channels = random_int(c, 1, 70), rest = draw_size(c, 2000);
    const int64_t outer = is_last ? rest : channels, inner = is_last ? channels : rest;
    m2_tensor cond = draw_tensor(c, M2_F32, 1, outer, inner);
    *y_out = draw_tensor(c, M2_F32, 3, outer, inner);
    ops->guidance_rescale(
        ops, &(m2_guidance_rescale_args){
                 .cond = &cond, .rescale = 0.7f, .channels_last = is_last, .v = y_out });
}

void draw_unipc_step(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const int64_t n = random_int(c, 1, 9000), n_steps = random_int(c, 1, 8);
    m2_tensor step = draw_step(c, n_steps);
    m2_tensor table = random_tensor(c, M2_F32, 1, n_steps, M2_UNIPC_COEFFS), tensors[5];
    for (int64_t k = 0; k < n_steps; k++) {
        float *row = (float *)table.data + k * M2_UNIPC_COEFFS;
        row[M2_UNIPC_CORRECTOR] = (float)(k < 2 ? k : random_int(c, 1, 2));
        row[M2_UNIPC_PREDICTOR] = (float)(k == n_steps - 1 ? 0 : k == 0 ? 1 : random_int(c, 1, 2));
    }
    for (int i = 0; i < 5; i++) tensors[i] = random_tensor(c, M2_F32, 1, n);
    *y_out = random_tensor(c, M2_F32, 1, n);
    ops->unipc_step(ops, &(m2_unipc_step_args){ .velocity = &tensors[0],
                                                .table = &table,
                                                .step = &step,
                                                .clean = { &tensors[1], &tensors[2], &tensors[3] },
                                                .start = &tensors[4],
                                                .latent = y_out });
}

void draw_advance(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    *y_out = draw_step(c, 1000);
    ops->advance(ops, &(m2_advance_args){ .counter = y_out });
}
