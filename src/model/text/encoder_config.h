/* encoder_config.h - the sizes of the text encoder, from its config.json.
 *
 * Reads both layouts in the wild: the multimodal one (sizes below "text_config") and the text-only
 * one (sizes at the top).  What would change the maths - another activation, biases, scaled RoPE,
 * experts, a layer type that is not known - is refused; fields without effect here are passed over.
 */
#ifndef M2_MODEL_TEXT_ENCODER_CONFIG_H
#define M2_MODEL_TEXT_ENCODER_CONFIG_H

#include "core/status.h"

#define M2_TEXT_LAYERS_MAX 256

typedef struct m2_text_config {
    int n_layers; /* of the model; the last two are not needed for the features    */
    int hidden_size;
    int mlp_size; /* intermediate_size                                             */
    int vocab_size;
    double rms_eps;
    int n_heads, n_kv_heads, head_dim; /* full attention                               */
    int n_rot; /* pairs (i, i + n_rot) of a head that RoPE turns                */
    double rope_theta;
    int n_key_heads, key_dim, n_value_heads, value_dim; /* linear attention            */
    int conv_kernel;
    unsigned char is_full[M2_TEXT_LAYERS_MAX]; /* full attention, else linear          */
} m2_text_config;

/* The released model. */
void m2_text_config_init(m2_text_config *config);

/* Errors  M2_ERR_IO, M2_ERR_FORMAT (not JSON, a field missing, of the wrong type or out of range),
 *         M2_ERR_UNSUPPORTED (other maths); *config_out is written only on success */
m2_status m2_text_config_load(const char *path, m2_text_config *config_out);

#endif
