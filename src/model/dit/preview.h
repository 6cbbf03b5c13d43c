/* preview.h - the preview transformer: noisy latents and a timestep in, velocities out.
 *
 * Both guidance branches are computed in one forward.  What does not change between steps - token
 * orders, rotary tables, embedded text and image rows - is prepared once per request.
 *
 * Rows stand in modality order, except inside attention (packing.h).  A row is four residual streams
 * of `hidden` bf16 each; embedding and final projections are f32.
 *
 * Memory   weights in the arena given to open; a request in the request arena; a forward takes its
 *          activations from the step arena and gives them back.  Nothing else is allocated in a
 *          forward, nothing is read back.  A plan is the same code on measuring arenas with the
 *          operator table of m2_ops_init_measure().
 * Threads  a network is read-only after open; different requests may run at once.
 */
#ifndef M2_MODEL_DIT_PREVIEW_H
#define M2_MODEL_DIT_PREVIEW_H

#include "core/trace.h"
#include "model/dit/packing.h"
#include "model/dit/preview_weights.h"

typedef struct m2_preview m2_preview;

/* For tests and for looking inside.  Activations show, in modality order, as "preview.pre.video",
 * "preview.03.attn_out", "preview.03.topk_idx", "preview.03.out" ... */
typedef struct m2_preview_hooks {
    const m2_trace *trace;   /* NULL: none */
    const m2_tensor *forced; /* [num_layers] tensors [Hm, n, top_k] i32, rows in modality
                                      order: expert ids instead of the choice where data is set;
                                      NULL: none                                                */
} m2_preview_hooks;

/* n_time_channels: columns that hold the time embedding (64), even.
 * Errors  M2_ERR_MODEL with every missing, unexpected or misshapen tensor; M2_ERR_MEMORY */
m2_status m2_preview_open(const m2_checkpoint *checkpoint, const m2_arch_config *arch,
                          int n_time_channels, const m2_ops *ops, m2_arena *arena,
                          m2_preview **preview_out);
/* A network without weights, for plans on measuring arenas alone. */
m2_status m2_preview_open_shapes(const m2_arch_config *arch, int n_time_channels,
                                 m2_preview **preview_out);
void m2_preview_close(m2_preview *preview);
const m2_preview_sizes *m2_preview_sizes_of(const m2_preview *preview);
const m2_preview_weights *m2_preview_weights_of(const m2_preview *preview);

/* What a request is conditioned on; tensors are borrowed for m2_preview_prepare alone. */
typedef struct m2_preview_conditions {
    const m2_tensor *text[M2_BRANCHES];             /* [text_len, text channels] bf16 or f32     */
    const m2_tensor *images[M2_PREVIEW_IMAGES_MAX]; /* [video channels, height * width] f32      */
    const m2_tensor *special;                       /* [n_images, text channels] bf16 or f32     */
} m2_preview_conditions;

typedef struct m2_preview_request {
    m2_packing packing;
    m2_tensor seq, row;                /* [n] i32: sequence row of every row, and back  */
    m2_tensor rope;                    /* [n, 6 * n_bands] f32                          */
    m2_tensor first_row;               /* [max(n_video, audio_len)] i32, all 0          */
    m2_tensor text_rows;               /* [rows of the text group, R] bf16              */
    m2_tensor patch_rows[M2_BRANCHES]; /* [n_patches, R] bf16                           */
} m2_preview_request;

/* Lay out a request in `request`, with `step` as scratch; conditions are ignored by a measuring
 * table.  hooks may be NULL.
 * Errors  M2_ERR_ARG (sizes), M2_ERR_MEMORY */
m2_status m2_preview_prepare(const m2_preview *preview, const m2_ops *ops, m2_arena *request,
                             m2_arena *step, const m2_preview_shape *shape,
                             const m2_preview_conditions *conditions, const m2_preview_hooks *hooks,
                             m2_preview_request *request_out);

typedef struct m2_preview_step {
    const m2_tensor *video; /* [video channels, T, h, w] f32 noisy latent       */
    const m2_tensor *audio; /* [audio_len, audio channels] f32                  */
    int timestep;           /* 0 ... 1000, whole: the model never sees sigma    */
    m2_tensor *video_out;   /* [2, video channels, T, h, w] f32 velocity        */
    m2_tensor *audio_out;   /* [2, audio_len, audio channels] f32               */
    /* For a step that is recorded and replayed, instead of timestep: tau[counter] is the time. */
    const m2_tensor *tau;     /* [n_steps] f32: timestep / 1000; or NULL          */
    const m2_tensor *counter; /* [1] i32                                          */
} m2_preview_step;

/* The time that a timestep stands for. */
float m2_preview_tau(int timestep);

/* One forward of both branches.  hooks may be NULL. */
void m2_preview_forward(const m2_preview *preview, const m2_ops *ops, m2_arena *step_arena,
                        const m2_preview_request *request, const m2_preview_step *step,
                        const m2_preview_hooks *hooks);

/* Layer `layer_idx` alone, in place on s [n, 4, hidden] bf16 in modality order. */
void m2_preview_layer(const m2_preview *preview, const m2_ops *ops, m2_arena *step_arena,
                      const m2_preview_request *request, int layer_idx, m2_tensor *s,
                      const m2_preview_hooks *hooks);

#endif
