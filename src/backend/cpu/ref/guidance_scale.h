/* guidance_scale.h - the guidance scale of each element: one for all, or one a frame.
 *
 * Elements are walked in pieces that share one scale: whole rows of the innermost dimension when
 * scales differ by frame, else runs of a fixed length. */
#ifndef M2_BACKEND_CPU_REF_GUIDANCE_SCALE_H
#define M2_BACKEND_CPU_REF_GUIDANCE_SCALE_H

#include "core/tensor.h"

#include <assert.h>

#define M2_GUIDANCE_RUN 4096

typedef struct m2_guidance_pieces {
    const float *scale;
    int64_t n, n_pieces, length;
    int64_t n_frames; /* 1 with one scale for all */
} m2_guidance_pieces;

static inline m2_guidance_pieces m2_guidance_cut(const m2_tensor *x, const m2_tensor *scale,
                                                 const m2_tensor *step)
{
    const int64_t row = step ? *(const int32_t *)step->data : 0;
    assert(scale->dtype == M2_F32 && scale->n_dims == 2 && (!step || step->dtype == M2_I32));
    assert(row >= 0 && row < scale->shape[0]);
    m2_guidance_pieces pieces = { .scale = (const float *)scale->data + row * scale->shape[1],
                                  .n = m2_tensor_count(x) };
    if (scale->shape[1] == 1) {
        pieces.n_frames = 1;
        pieces.length = M2_GUIDANCE_RUN;
        pieces.n_pieces = (pieces.n + M2_GUIDANCE_RUN - 1) / M2_GUIDANCE_RUN;
    } else {
        assert(x->n_dims == 3 && x->shape[1] == scale->shape[1]);
        pieces.n_frames = x->shape[1];
        pieces.length = x->shape[2];
        pieces.n_pieces = x->shape[0] * x->shape[1];
    }
    return pieces;
}

static inline float m2_guidance_piece(const m2_guidance_pieces *pieces, int64_t piece,
                                      int64_t *begin_out, int64_t *end_out)
{
    const int64_t begin = piece * pieces->length, end = begin + pieces->length;
    *begin_out = begin;
    *end_out = end < pieces->n ? end : pieces->n;
    return pieces->scale[piece % pieces->n_frames];
}

#endif
