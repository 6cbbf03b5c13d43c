/* encoder_weights.h - the tensors of the text encoder, and the tables that bind them.
 *
 * Names are those of the released files.  Every weight is rounded to bf16 when loaded, also A_log,
 * dt_bias and the gated norm that a file may hold in f32: the reference does that.  For judging,
 * weights can be f32 throughout.
 *
 * Of n layers the first n - 2 are loaded: the features are the stream behind them.
 */
#ifndef M2_MODEL_TEXT_ENCODER_WEIGHTS_H
#define M2_MODEL_TEXT_ENCODER_WEIGHTS_H

#include "model/text/encoder_config.h"
#include "model/weights.h"

typedef struct m2_text_layer {
    m2_tensor input_norm, post_norm; /* [hidden], offsets from 1 */
    m2_tensor gate_proj, up_proj;    /* [mlp, hidden]            */
    m2_tensor down_proj;             /* [hidden, mlp]            */
    /* full attention */
    m2_tensor q_proj;         /* [H * 2 * d, hidden]: query, then gate, per head */
    m2_tensor k_proj, v_proj; /* [K * d, hidden]          */
    m2_tensor o_proj;         /* [hidden, H * d]          */
    m2_tensor q_norm, k_norm; /* [d], offsets from 1      */
    /* linear attention */
    m2_tensor in_proj_qkv;          /* [2 * Hk * dk + Hv * dv, hidden] */
    m2_tensor in_proj_z;            /* [Hv * dv, hidden]        */
    m2_tensor in_proj_a, in_proj_b; /* [Hv, hidden]             */
    m2_tensor conv;                 /* [channels, 1, kernel]    */
    m2_tensor a_log, dt_bias;       /* [Hv]                     */
    m2_tensor gated_norm;           /* [dv], plain              */
    m2_tensor out_proj;             /* [hidden, Hv * dv]        */
} m2_text_layer;

typedef struct m2_text_weights {
    m2_tensor embed_tokens; /* [vocab, hidden]                    */
    m2_tensor norm;         /* [hidden]; only if all layers are loaded */
    int n_layers;           /* loaded                             */
    m2_text_layer layers[M2_TEXT_LAYERS_MAX];
} m2_text_weights;

/* How many layers are needed: n - 2, or all (for judging the states behind every layer). */
int m2_text_layers_needed(const m2_text_config *config, int want_all);

/* Bind what is needed from `checkpoint` as `dtype` (M2_BF16, or M2_F32 for judging).
 * Errors  M2_ERR_MODEL: every missing, unexpected and misshapen tensor in one message */
m2_status m2_text_weights_load(const m2_checkpoint *checkpoint, const m2_text_config *config,
                               const m2_ops *ops, m2_arena *arena, m2_dtype dtype, int want_all,
                               m2_text_weights *weights_out);

/* Calls `row` for every tensor that m2_text_weights_load would bind as bf16, names with `prefix`. */
void m2_text_weights_describe(const m2_text_config *config, const char *prefix,
                              m2_weight_visit *row, void *user);

/* The beginnings of names that are allowed and passed over, one call each. */
void m2_text_weights_ignored(const m2_text_config *config, const char *prefix, int want_all,
                             void (*name)(void *user, const char *prefix), void *user);

#endif
