/* guidance_mix.c - v = u + s * (c - u), three f32 operations. */
#include "backend/cpu/ref/guidance_scale.h"
#include "backend/cpu/ref/ref.h"

typedef struct mix_loop {
    const float *cond, *uncond;
    float *v;
    m2_guidance_pieces pieces;
} mix_loop;

static void mix_pieces(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    const mix_loop *loop = context;
    for (int64_t piece = begin; piece < end; piece++) {
        int64_t first, last;
        const float s = m2_guidance_piece(&loop->pieces, piece, &first, &last);
        for (int64_t i = first; i < last; i++) {
            const float u = loop->uncond[i];
            const float difference = loop->cond[i] - u;
            const float scaled = s * difference;
            loop->v[i] = u + scaled;
        }
    }
}

void m2_ref_guidance_mix(const m2_ops *ops, const m2_guidance_mix_args *args)
{
    mix_loop loop = { .cond = args->cond->data,
                      .uncond = args->uncond->data,
                      .v = args->v->data,
                      .pieces = m2_guidance_cut(args->cond, args->scale, args->step) };
    assert(args->cond->dtype == M2_F32 && args->uncond->dtype == M2_F32 &&
           args->v->dtype == M2_F32);
    assert(m2_tensor_count(args->uncond) == loop.pieces.n &&
           m2_tensor_count(args->v) == loop.pieces.n);
    m2_parallel_for(ops->pool, loop.pieces.n_pieces, 4, mix_pieces, &loop);
}
