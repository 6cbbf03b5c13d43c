/* step_need.h - the tensors that one denoising step works on, and what it needs, without a clip.
 *
 * Measuring and planning make no clip: token counts stand for prompts.
 */
#ifndef M2_PIPELINE_STEP_NEED_H
#define M2_PIPELINE_STEP_NEED_H

#include "io/config.h"
#include "pipeline/step_loop.h"

/* Tokens of a short prompt, and of the released negative prompt. */
#define M2_NEED_PROMPT_TOKENS   15
#define M2_NEED_NEGATIVE_TOKENS 429
extern const int64_t m2_need_text_len[M2_BRANCHES];

typedef struct m2_step_inputs {
    m2_preview_shape shape;
    m2_tensor features[M2_BRANCHES]; /* [tokens, text channels] bf16 */
    m2_tensor video, audio;          /* latents f32                  */
} m2_step_inputs;

/* Lays out the inputs in `arena`, their values are the caller's. */
void m2_step_inputs_make(m2_step_inputs *inputs, m2_arena *arena, const m2_model_config *config,
                         const m2_settings *settings, const int64_t text_len[M2_BRANCHES]);
/* A loop over them; `inputs` and `settings` stay where they are for its life. */
m2_step_loop_params m2_step_inputs_params(m2_step_inputs *inputs, const m2_preview *preview,
                                          const m2_settings *settings);

typedef struct m2_step_need {
    size_t request_bytes, step_bytes;
    int64_t n_tokens;
    int64_t n_calls;    /* operators of one forward, and those that lay a request out */
    double flop, bytes; /* of one forward: the least it can compute and move          */
} m2_step_need;

/* Counted by running the step's own code on measuring arenas.  `device` is that of the table to plan
 * for.  Errors  M2_ERR_ARG, M2_ERR_MEMORY */
m2_status m2_step_need_count(const m2_preview *preview, const m2_model_config *config,
                             const m2_settings *settings, const int64_t text_len[M2_BRANCHES],
                             const m2_device_api *device, m2_step_need *need_out);

#endif
