/* preview_weights.h - the tensors of the preview transformer, by name.
 *
 * A layer has one weight set, or one for each modality ("mm" layers), in its attention and mHC; its
 * second half is a dense MLP or a mixture of experts.  Tables name every tensor once; they drive
 * loading, checking and listing.
 */
#ifndef M2_MODEL_DIT_PREVIEW_WEIGHTS_H
#define M2_MODEL_DIT_PREVIEW_WEIGHTS_H

#include "io/config.h"
#include "model/weights.h"

#define M2_MODALITIES 3 /* video, audio, text */

/* mHC of one half layer. */
typedef struct m2_preview_mhc {
    m2_tensor alpha_pre, alpha_post, alpha_res; /* [1] f32      */
    m2_tensor bias_pre, bias_post;              /* [4] f32      */
    m2_tensor bias_res;                         /* [4, 4] f32   */
    m2_tensor phi;                              /* [R, 24] f32  */
} m2_preview_mhc;

/* M is 3 in mm layers, else 1.  Tensors of the half that a layer does not have stay without data. */
typedef struct m2_preview_layer_weights {
    int is_mm, is_moe;
    m2_tensor mhc_norm; /* [R * M] f32, of both halves */
    m2_preview_mhc mhc_attn, mhc_mlp;

    m2_tensor attn_norm;      /* [D * M] f32                 */
    m2_tensor linear_g;       /* [H * M, D] bf16             */
    m2_tensor linear_qkv;     /* [(H + 2K) d * M, D] bf16    */
    m2_tensor linear_proj;    /* [D * M, D] bf16             */
    m2_tensor q_norm, k_norm; /* [d * M] f32                 */
    m2_tensor sinks;          /* [n_sinks, H] f32            */

    m2_tensor mlp_norm; /* [D * M] f32, of experts always [D * 3] */
    m2_tensor up_gate;  /* [2 * width * M, D] bf16                */
    m2_tensor down;     /* [D * M, width] bf16                    */

    m2_tensor split, merge;               /* [D, D] bf16                      */
    m2_tensor shared_fc1, shared_fc2;     /* [2 * width, D], [D, width] bf16  */
    m2_tensor modality_fc1, modality_fc2; /* the same, three times            */
    m2_tensor router;                     /* [Hm * E, dh] f32                 */
    m2_tensor w_gate, w_up, w_down;       /* [Hm * E, dh, width] ... bf16     */
    m2_tensor expert_bias;                /* [Hm * E] f32, never read         */
    m2_tensor expert_bias_ema;            /* [Hm * E] f32: steers the choice  */
} m2_preview_layer_weights;

typedef struct m2_preview_weights {
    m2_tensor video_w, video_b; /* [R, video channels], [R] f32 */
    m2_tensor audio_w, audio_b;
    m2_tensor text_w, text_b;
    m2_tensor rope_bands;                 /* [d / 8] f32                */
    m2_tensor video_norm, audio_norm;     /* [R] f32                    */
    m2_tensor video_linear, audio_linear; /* [channels, R] f32          */
    m2_preview_layer_weights *layers;     /* [num_layers]               */
} m2_preview_weights;

/* Sizes that follow from the config. */
typedef struct m2_preview_sizes {
    int64_t hidden, residual; /* D, R = 4 D                        */
    int64_t n_heads, n_kv_heads, head_dim;
    int64_t n_bands, n_sinks; /* bands of one rotary axis          */
    int64_t dense_width;      /* of the dense MLP                  */
    int64_t n_moe_heads, moe_dim, n_experts, top_k;
    int64_t expert_width, shared_width, modality_width;
    int64_t video_channels, audio_channels, text_channels;
} m2_preview_sizes;

/* Errors  M2_ERR_MODEL: numbers that do not fit together, all of one config in one message */
m2_status m2_preview_sizes_init(const m2_arch_config *arch, m2_preview_sizes *sizes_out);

/* Bind every tensor of `checkpoint` (borrowed for as long as the weights); names that no table asks
 * for are faults.  weights->layers is [num_layers] and borrowed. */
m2_status m2_preview_weights_bind(const m2_checkpoint *checkpoint, const m2_arch_config *arch,
                                  const m2_ops *ops, m2_arena *arena, m2_preview_weights *weights);

/* Types and shapes alone, without data, for plans. */
m2_status m2_preview_weights_shapes(const m2_arch_config *arch, m2_preview_weights *weights);

/* Every name, type and shape that a config asks for, in the tables' order. */
m2_status m2_preview_weights_describe(const m2_arch_config *arch, m2_weight_visit *row, void *user);

#endif
