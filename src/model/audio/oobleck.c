#include "model/audio/oobleck.h"

#include "model/audio/oobleck_weights.h"

#include <assert.h>
#include <stdlib.h>

m2_status m2_oobleck_create(const m2_oobleck_config *config, const m2_checkpoint *checkpoint,
                            const m2_ops *ops, m2_arena *weights, m2_oobleck **oobleck_out)
{
    m2_oobleck *oobleck = malloc(sizeof *oobleck);
    if (!oobleck) return m2_fail(M2_ERR_MEMORY, "sound decoder: no memory for its layers");
    m2_oobleck_lay_out(config, oobleck);
    const m2_status status = m2_oobleck_load_weights(oobleck, checkpoint, ops, weights);
    if (status != M2_OK) {
        m2_oobleck_destroy(oobleck);
        return status;
    }
    *oobleck_out = oobleck;
    return M2_OK;
}

void m2_oobleck_destroy(m2_oobleck *oobleck)
{
    free(oobleck);
}

/* Three buffers take turns.  They are sized by running the clip on a measuring table first. */
#define N_BUFFERS 3

typedef struct clip_run {
    const m2_oobleck *oobleck;
    const m2_ops *ops;
    m2_status (*check)(void *user);
    void *user;
    m2_tensor t[N_BUFFERS]; /* [n, channels], what each holds now */
    void *data[N_BUFFERS];
    size_t bytes[N_BUFFERS];
} clip_run;

static m2_tensor *take(clip_run *run, int to, int64_t n, int64_t channels)
{
    m2_tensor *tensor = &run->t[to];
    *tensor = m2_tensor_over(run->data[to], M2_F32, n, channels);
    const size_t bytes = m2_tensor_bytes(tensor);
    if (run->ops->is_measuring && bytes > run->bytes[to]) run->bytes[to] = bytes;
    assert(bytes <= run->bytes[to]);
    return tensor;
}

static m2_status go_on(const clip_run *run)
{
    return run->check ? run->check(run->user) : M2_OK;
}

static m2_tensor as_rows(const m2_tensor *x)
{
    return m2_tensor_over(x->data, x->dtype, 1, 1, x->shape[0], x->shape[1]);
}

static void convolve(clip_run *run, const m2_oobleck_conv *conv, const m2_tensor *from, int to,
                     int dilation, int pad_left)
{
    const m2_tensor x = as_rows(from);
    m2_tensor y = as_rows(take(run, to, from->shape[0], conv->c_out));
    run->ops->conv(run->ops, &(m2_conv_args){ .x = &x,
                                              .w = &conv->w,
                                              .bias = conv->has_bias ? &conv->bias : NULL,
                                              .kernel = { 1, 1, conv->n_taps },
                                              .dilation = dilation,
                                              .pad_left = pad_left,
                                              .y = &y });
}

static void activate(clip_run *run, const m2_oobleck_snake *snake, int from, int to)
{
    const m2_tensor *x = &run->t[from];
    m2_tensor *y = from == to ? &run->t[to] : take(run, to, x->shape[0], x->shape[1]);
    if (run->oobleck->config.use_snake)
        run->ops->snake(
            run->ops,
            &(m2_snake_args){ .x = x, .alpha = &snake->alpha, .beta = &snake->beta, .y = y });
    else
        run->ops->activate(run->ops,
                           &(m2_activate_args){ .x = x, .activation = M2_ACT_ELU, .y = y });
}

/* From buffer x; gives the buffer of the longer signal. */
static int upsample(clip_run *run, const m2_oobleck_block *block, int stride, int x)
{
    const m2_ops *ops = run->ops;
    const m2_oobleck_conv *conv = &block->upsample;
    const int a = (x + 1) % N_BUFFERS;
    const int64_t n = run->t[x].shape[0];
    activate(run, &block->act, x, x);
    if (conv->is_transposed) {
        m2_tensor *y = take(run, a, n * stride - stride % 2, conv->c_out);
        ops->conv_transpose(
            ops,
            &(m2_conv_transpose_args){
                .x = &run->t[x], .w = &conv->w, .bias = &conv->bias, .stride = stride, .y = y });
        return a;
    }
    const m2_tensor small = as_rows(&run->t[x]);
    m2_tensor large = as_rows(take(run, a, n * stride, conv->c_in));
    ops->upsample_nearest(
        ops, &(m2_upsample_nearest_args){ .x = &small, .fh = 1, .fw = stride, .y = &large });
    convolve(run, conv, &run->t[a], x, 1, stride - 1);
    return x;
}

static void add_unit(clip_run *run, const m2_oobleck_unit *unit, int x)
{
    const int a = (x + 1) % N_BUFFERS, b = (x + 2) % N_BUFFERS;
    activate(run, &unit->act1, x, a);
    convolve(run, &unit->conv1, &run->t[a], b, unit->dilation, -1);
    activate(run, &unit->act2, b, b);
    convolve(run, &unit->conv2, &run->t[b], a, 1, -1);
    run->ops->add(run->ops, &(m2_add_args){ .a = &run->t[x], .b = &run->t[a], .y = &run->t[x] });
}

/* The sound ends up in buffer *x_out. */
static m2_status run_clip(clip_run *run, const m2_tensor *latent, int *x_out)
{
    const m2_oobleck *oobleck = run->oobleck;
    const m2_oobleck_config *config = &oobleck->config;
    int x = 0;
    convolve(run, &oobleck->conv_in, latent, x, 1, -1);
    for (int b = 0; b < config->n_blocks; b++) {
        const m2_oobleck_block *block = &oobleck->blocks[b];
        M2_TRY(go_on(run));
        x = upsample(run, block, config->strides[b], x);
        for (int u = 0; u < M2_OOBLECK_UNITS; u++) {
            M2_TRY(go_on(run));
            add_unit(run, &block->units[u], x);
        }
    }
    M2_TRY(go_on(run));
    activate(run, &oobleck->act_out, x, x);
    const int y = (x + 1) % N_BUFFERS;
    convolve(run, &oobleck->conv_out, &run->t[x], y, 1, -1);
    for (int i = 0; i < config->final_tanh + config->soft_clip; i++)
        run->ops->activate(
            run->ops,
            &(m2_activate_args){ .x = &run->t[y], .activation = M2_ACT_TANH, .y = &run->t[y] });
    *x_out = y;
    return M2_OK;
}

m2_status m2_oobleck_decode(const m2_oobleck *oobleck, const m2_ops *ops, m2_arena *step,
                            const m2_tensor *latent, m2_status (*check)(void *user), void *user,
                            m2_tensor *wave_out)
{
    assert(latent->n_dims == 2 && latent->shape[1] == oobleck->config.latent_dim);
    m2_ops measure;
    m2_ops_init_measure(&measure);
    int x = 0;
    clip_run run = { .oobleck = oobleck, .ops = &measure };
    M2_TRY(run_clip(&run, latent, &x));
    for (int i = 0; i < N_BUFFERS; i++) run.data[i] = m2_arena_alloc(step, run.bytes[i]);
    run.ops = ops;
    run.check = check;
    run.user = user;
    M2_TRY(run_clip(&run, latent, &x));
    *wave_out = run.t[x];
    return M2_OK;
}
