/* oobleck_weights.h - the layers of a Stable Audio Open decoder and how they come out of its file.
 *
 * Weight norm is folded once, at load: w = v * (g / |v|), the norm over everything but dimension 0,
 * which is the output channel of a convolution and the input channel of a transposed one.  Weights
 * are reordered to [taps, out, in] on the way.
 *
 * Private to audio/: others see oobleck.h.
 */
#ifndef M2_MODEL_AUDIO_OOBLECK_WEIGHTS_H
#define M2_MODEL_AUDIO_OOBLECK_WEIGHTS_H

#include "backend/ops.h"
#include "io/checkpoint.h"
#include "model/audio/oobleck.h"

#define M2_OOBLECK_UNITS 3
#define M2_OOBLECK_TAPS  7

typedef struct m2_oobleck_conv {
    int c_in, c_out, n_taps;
    int is_transposed, has_bias;
    m2_tensor w;    /* [n_taps, c_out, c_in] f32 */
    m2_tensor bias; /* [c_out] f32               */
} m2_oobleck_conv;

/* Without weights where the network has ELU instead. */
typedef struct m2_oobleck_snake {
    int channels;
    m2_tensor alpha, beta; /* [channels] f32, logarithms */
} m2_oobleck_snake;

/* x + conv2(act2(conv1(act1(x)))) */
typedef struct m2_oobleck_unit {
    int dilation;
    m2_oobleck_snake act1, act2;
    m2_oobleck_conv conv1, conv2;
} m2_oobleck_unit;

typedef struct m2_oobleck_block {
    m2_oobleck_snake act;
    m2_oobleck_conv upsample;
    m2_oobleck_unit units[M2_OOBLECK_UNITS];
} m2_oobleck_block;

struct m2_oobleck {
    m2_oobleck_config config;
    m2_oobleck_conv conv_in;
    m2_oobleck_block blocks[M2_OOBLECK_BLOCKS_MAX];
    m2_oobleck_snake act_out;
    m2_oobleck_conv conv_out;
};

/* Sizes of all layers, without weights. */
void m2_oobleck_lay_out(const m2_oobleck_config *config, m2_oobleck *oobleck);

/* Errors  M2_ERR_MODEL with every fault, M2_ERR_MEMORY */
m2_status m2_oobleck_load_weights(m2_oobleck *oobleck, const m2_checkpoint *checkpoint,
                                  const m2_ops *ops, m2_arena *arena);

#endif
