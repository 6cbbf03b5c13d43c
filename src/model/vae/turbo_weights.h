/* turbo_weights.h - the convolutions of a TurboVAED decoder and how they come out of a checkpoint.
 *
 * One layout, made from the config, drives checking, loading, planning and `inspect`.  Weights are
 * reordered once, from [out, in, kt, kh, kw] to [taps, out, in] in the compute type, which is what
 * the channels-last convolution reads.
 *
 * Private to vae/: others see turbo.h.
 */
#ifndef M2_MODEL_VAE_TURBO_WEIGHTS_H
#define M2_MODEL_VAE_TURBO_WEIGHTS_H

#include "backend/ops.h"
#include "io/checkpoint.h"
#include "model/vae/turbo.h"

#define M2_TURBO_NAME_BYTES 96

/* An ordinary convolution, or a depthwise one and the 1x1x1 that mixes its channels. */
typedef struct m2_turbo_conv {
    char name[M2_TURBO_NAME_BYTES]; /* up to ".weight" or, if depthwise, ".depthwise_conv" */
    int c_in, c_out;
    int kernel[3]; /* of time, height, width; of the depthwise part if there is one */
    int is_2d;     /* the file has no time dimension                                */
    int is_depthwise;
    m2_tensor depthwise, depthwise_bias; /* [taps, c_in], [c_in]                    */
    m2_tensor w, bias;                   /* [taps, c_out, c_in], [c_out]            */
} m2_turbo_conv;

/* x + conv2(SiLU(norm(conv1(first(norm(x)))))), x through `shortcut` where the channels change. */
typedef struct m2_turbo_res {
    m2_activation first;
    int has_shortcut;
    m2_turbo_conv conv1, conv2, shortcut;
} m2_turbo_res;

typedef struct m2_turbo_block {
    int has_change, has_upsampler, has_time;
    m2_turbo_res change;               /* to the block's channels   */
    m2_turbo_conv time_conv, resample; /* of the upsampler          */
    int n_resnets;
    m2_turbo_res *resnets;
} m2_turbo_block;

struct m2_turbo {
    m2_turbo_config config;
    m2_dtype dtype;      /* of weights and activations */
    m2_tensor mean, std; /* [48] f32                   */
    m2_turbo_conv conv_in;
    m2_turbo_block mid; /* without change and upsampler */
    m2_turbo_block blocks[M2_TURBO_BLOCKS_MAX];
    m2_turbo_conv head_upsampler; /* of the shuffle head only */
    m2_turbo_conv conv_out;
    m2_turbo_res *all_resnets; /* the blocks' resnets, one array */
    int n_convs;
    m2_turbo_conv **convs; /* all of them, in the order of the network */
};

/* Names and sizes without weights; m2_turbo_destroy frees it.
 * Errors  M2_ERR_MEMORY */
m2_status m2_turbo_lay_out(const m2_turbo_config *config, m2_dtype dtype, m2_turbo **turbo_out);

/* Errors  M2_ERR_MODEL with every fault, M2_ERR_MEMORY */
m2_status m2_turbo_load_weights(m2_turbo *turbo, const m2_checkpoint *checkpoint, const m2_ops *ops,
                                m2_arena *arena);

#endif
