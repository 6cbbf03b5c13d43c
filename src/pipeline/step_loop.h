/* step_loop.h - the denoising steps of one clip: one forward of both branches, guidance, one step of
 * each sampler.
 *
 * A step depends on nothing that the host knows: times, scales and coefficients of all steps are on the
 * device, and a counter there says which is next.  So steps can be enqueued ahead, and on a device that
 * records, the second one is recorded and from then on replayed.  What the host has to learn (the steps
 * done, a velocity that is not finite) comes by a mailbox.
 *
 *     M2_TRY(m2_step_loop_prepare(&loop, ops, &request, &step, &params));   noise goes to the latents
 *     M2_TRY(m2_step_loop_start(&loop, 0));
 *     for each step  M2_TRY(m2_step_loop_enqueue(&loop));  M2_TRY(m2_step_loop_wait(&loop, done));
 *     m2_step_loop_finish(&loop);
 *
 * Threads  one loop, one thread at a time.
 */
#ifndef M2_PIPELINE_STEP_LOOP_H
#define M2_PIPELINE_STEP_LOOP_H

#include "backend/device.h"
#include "core/trace.h"
#include "model/dit/preview.h"
#include "pipeline/settings.h"
#include "sample/guidance.h"
#include "sample/sampler.h"

typedef struct m2_step_loop_params {
    const m2_preview *preview;
    const m2_settings *settings; /* borrowed for the life of the loop          */
    m2_preview_shape shape;
    m2_preview_conditions conditions; /* borrowed for m2_step_loop_prepare alone */
    m2_tensor *video, *audio;         /* latents, in/out, borrowed                 */
    const m2_trace *trace;            /* NULL: none; a traced loop is not recorded */
} m2_step_loop_params;

/* Must stay where it is once prepared. */
typedef struct m2_step_loop {
    m2_step_loop_params params;
    const m2_ops *ops;
    m2_arena *step_arena;
    m2_preview_request request;
    m2_tensor state;   /* [3] i32: flags of a velocity that is not finite, steps done */
    m2_tensor counter; /* [1] i32: the last of them                                   */
    m2_tensor tau;     /* [n_steps] f32                                               */
    m2_sampler video_sampler, audio_sampler;
    m2_guidance video_guidance, audio_guidance;
    m2_tensor video_velocity; /* [2, channels, T, h, w] f32 */
    m2_tensor audio_velocity; /* [2, A, channels] f32       */
    const volatile int32_t *mailbox;
    m2_recording *recording; /* NULL: steps are enqueued operator by operator */
    int may_record;
    int n_enqueued; /* steps begun, those of an earlier process included */
    int n_run;      /* steps begun by this loop                          */
} m2_step_loop;

/* Lays out everything that the loop needs in the request arena.  On measuring arenas, a plan of the
 * step too.
 * Errors  M2_ERR_ARG, M2_ERR_MEMORY */
m2_status m2_step_loop_prepare(m2_step_loop *loop, const m2_ops *ops, m2_arena *request,
                               m2_arena *step_arena, const m2_step_loop_params *params);

/* `n_done` steps are behind it: the latents, and the samplers' histories, are in place. */
m2_status m2_step_loop_start(m2_step_loop *loop, int n_done);

/* Queue the next step. */
m2_status m2_step_loop_enqueue(m2_step_loop *loop);
/* How many steps may be queued beyond the one that is waited for. */
int m2_step_loop_lag(const m2_step_loop *loop);
/* Until `n_done` steps are done.  Errors  M2_ERR_NUMERIC: a velocity was not finite */
m2_status m2_step_loop_wait(m2_step_loop *loop, int n_done);

/* Gives back what start and enqueue took; a loop that was never started too. */
void m2_step_loop_finish(m2_step_loop *loop);

#endif
