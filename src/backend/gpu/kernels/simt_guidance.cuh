/* simt_guidance.cuh - the guidance scale of an element: one for all, or one a frame, of the row of the
 * table that the counter on the device names. */
#ifndef M2_BACKEND_GPU_KERNELS_SIMT_GUIDANCE_CUH
#define M2_BACKEND_GPU_KERNELS_SIMT_GUIDANCE_CUH

#include "backend/gpu/kernels/simt_common.cuh"

#include <assert.h>

/* A run of elements shares one scale: a (channel, frame) row, or, with one scale for all, everything.
 * A block works inside one run. */
typedef struct simt_scales {
    const float *table;  /* [n_rows, n_frames]   */
    const int32_t *step; /* NULL: row 0          */
    int n_rows, n_frames;
    int64_t run; /* elements that share a scale */
    int64_t n_runs;
} simt_scales;

static inline simt_scales simt_scales_of(const m2_tensor *x, const m2_tensor *scale,
                                         const m2_tensor *step)
{
    simt_scales made;
    assert(scale->dtype == M2_F32 && scale->n_dims == 2);
    made.table = (const float *)scale->data;
    made.step = (const int32_t *)(step ? step->data : 0);
    made.n_rows = (int)scale->shape[0];
    made.n_frames = (int)scale->shape[1];
    made.run = made.n_frames == 1 ? m2_tensor_count(x) : x->shape[2];
    made.n_runs = made.run ? m2_tensor_count(x) / made.run : 0;
    return made;
}

static inline unsigned int simt_scales_blocks(const simt_scales *scales)
{
    return (unsigned int)(scales->n_runs * ((scales->run + SIMT_THREADS - 1) / SIMT_THREADS));
}

/* The element of this thread and its scale; gives 0 for a thread past the end of its run. */
static __device__ __forceinline__ int simt_scales_at(const simt_scales &scales, int64_t *i_out,
                                                     float *scale_out)
{
    const int64_t blocks_per_run = (scales.run + SIMT_THREADS - 1) / SIMT_THREADS;
    const int64_t run = (int64_t)blockIdx.x / blocks_per_run;
    const int64_t inside =
        ((int64_t)blockIdx.x - run * blocks_per_run) * SIMT_THREADS + threadIdx.x;
    const int asked = scales.step ? *scales.step : 0;
    /* A replay too many must not read behind the table. */
    const int row = asked < 0 ? 0 : asked < scales.n_rows ? asked : scales.n_rows - 1;
    *i_out = run * scales.run + inside;
    *scale_out = scales.table[(int64_t)row * scales.n_frames + run % scales.n_frames];
    return inside < scales.run;
}

#endif
