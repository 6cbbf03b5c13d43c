/* encoder.h - token ids in, text features out: the Qwen3.5 text model without its last two layers.
 *
 * Features are hidden_states[-3] of the model: of n layers the stream behind layer n - 3 (counted
 * from 0), without a final norm.  Three of four layers are gated delta nets, the fourth is causal
 * attention.  A prompt is one sequence, never padded.
 *
 * Types    bf16 weights and activations as released; f32 throughout for judging.
 * Delta    the recurrent form is the default whatever the length (bits must not depend on it): a
 *          column of the state stays in the nearest cache and short prompts are not padded to 64.
 * Threads  an encoder is read-only; each call needs its own step arena.
 */
#ifndef M2_MODEL_TEXT_ENCODER_H
#define M2_MODEL_TEXT_ENCODER_H

#include "model/text/encoder_config.h"
#include "backend/ops.h"
#include "io/checkpoint.h"

typedef struct m2_text_encoder m2_text_encoder;

typedef struct m2_text_encoder_params {
    m2_dtype dtype;      /* M2_BF16 or M2_F32: weights and activations                     */
    int use_chunks;      /* the chunked form of the delta rule                             */
    int want_all_layers; /* also the last two layers and the final norm, for the tap alone */
} m2_text_encoder_params;

/* As released. */
void m2_text_encoder_params_init(m2_text_encoder_params *params);

/* Load into `arena`.  `checkpoint` (whose mapped tensors are used in place) and `ops` are borrowed
 * until destroy; with a measuring table and arena this adds up the weights' bytes.
 * Errors  M2_ERR_MODEL (a tensor missing, unexpected or misshapen), M2_ERR_MEMORY */
m2_status m2_text_encoder_create(const m2_checkpoint *checkpoint, const m2_text_config *config,
                                 const m2_ops *ops, m2_arena *arena,
                                 const m2_text_encoder_params *params,
                                 m2_text_encoder **encoder_out);
void m2_text_encoder_destroy(m2_text_encoder *encoder);
const m2_text_config *m2_text_encoder_config(const m2_text_encoder *encoder);

/* Sees the hidden states of one call: 0 the embedding, i the stream behind layer i - 1; with
 * want_all_layers the last one, n_layers, is behind the final norm.  [n, hidden], for the call.
 * Anything but M2_OK ends the run with it. */
typedef m2_status m2_text_tap(void *user, int idx, const m2_tensor *hidden);

/* Encode `n` >= 1 ids.  Needs the `step` arena only during the call; with a measuring arena and
 * table, `ids` may be NULL and the arena's peak is the plan for this length.
 *   ids       [n] host
 *   features  [n, hidden] of the encoder's dtype
 *   tap       NULL: nobody looks
 * Errors  M2_ERR_ARG (no ids), M2_ERR_MODEL (an id beyond the embedding table), those of the tap */
m2_status m2_text_encoder_run(const m2_text_encoder *encoder, const m2_ops *ops, m2_arena *step,
                              const int32_t *ids, int64_t n, m2_tensor *features, m2_text_tap *tap,
                              void *tap_user);

/* The token that stands for a picture: the mean of the prompt's features over the tokens that
 * spell its name, or zeros if `n_rows` is 0.
 *   rows  [n_rows] host, each inside features;  y [hidden], type of features */
void m2_text_special_token(const m2_ops *ops, m2_arena *step, const m2_tensor *features,
                           const int32_t *rows, int64_t n_rows, m2_tensor *y);

#endif
