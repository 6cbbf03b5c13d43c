#include "model/vae/turbo.h"

#include "model/vae/latent_stats.h"
#include "model/vae/turbo_weights.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define NORM_EPS 1e-8f /* of every norm but those before a shortcut */

/* ---- life ------------------------------------------------------------------------------------- */

m2_status m2_turbo_create(const m2_turbo_config *config, const m2_checkpoint *checkpoint,
                          m2_dtype dtype, const m2_ops *ops, m2_arena *weights,
                          m2_turbo **turbo_out)
{
    m2_turbo *turbo = NULL;
    assert(dtype == M2_BF16 || dtype == M2_F32);
    M2_TRY(m2_turbo_lay_out(config, dtype, &turbo));
    const m2_status status = m2_turbo_load_weights(turbo, checkpoint, ops, weights);
    if (status != M2_OK) {
        m2_turbo_destroy(turbo);
        return status;
    }
    *turbo_out = turbo;
    return M2_OK;
}

void m2_turbo_destroy(m2_turbo *turbo)
{
    if (!turbo) return;
    free(turbo->all_resnets);
    free(turbo->convs);
    free(turbo);
}

/* ---- windows ---------------------------------------------------------------------------------- */

/* With f = first_chunk and s = step, the clip is repeated to f + k s latents: windows [0, f + 1),
 * then [i - 1, i + s + 1) for i = f, f + s ..., the last without its right neighbour. */
int64_t m2_turbo_n_windows(const m2_turbo_config *config, int64_t n_latents)
{
    const int64_t rest = n_latents - config->first_chunk;
    return 1 + (rest > 0 ? (rest + config->step - 1) / config->step : 0);
}

m2_turbo_window m2_turbo_window_at(const m2_turbo_config *config, int64_t n_latents, int64_t idx)
{
    const int64_t n_windows = m2_turbo_n_windows(config, n_latents);
    const int64_t f = config->first_chunk, s = config->step, ratio = config->temporal_ratio;
    const int is_last = idx == n_windows - 1;
    assert(n_latents >= 1 && idx >= 0 && idx < n_windows);
    m2_turbo_window window = { .is_first = idx == 0 };
    if (window.is_first) {
        window.n_latents = f + !is_last;
        window.n_frames = ratio * (f - 1) + 1;
    } else {
        window.latent_begin = f + (idx - 1) * s - 1;
        window.n_latents = s + 1 + !is_last;
        window.n_drop = ratio; /* the left neighbour's */
        window.first_frame = ratio * (window.latent_begin) + 1;
        window.n_frames = ratio * s;
    }
    const int64_t n_left = m2_turbo_n_frames(config, n_latents) - window.first_frame;
    if (window.n_frames > n_left) window.n_frames = n_left; /* of repeated latents */
    return window;
}

/* ---- one window --------------------------------------------------------------------------------- */

/* Three buffers take turns.  They are sized by running the window on a measuring table first. */
#define N_BUFFERS 3

typedef struct window_run {
    const m2_turbo *turbo;
    const m2_ops *ops;
    const m2_turbo_sink *sink; /* NULL while sizing */
    m2_tensor t[N_BUFFERS];    /* what each holds now */
    void *data[N_BUFFERS];
    size_t bytes[N_BUFFERS];
} window_run;

static m2_tensor *take(window_run *run, int to, int64_t frames, int64_t height, int64_t width,
                       int64_t channels)
{
    m2_tensor *tensor = &run->t[to];
    *tensor = m2_tensor_over(run->data[to], run->turbo->dtype, frames, height, width, channels);
    const size_t bytes = m2_tensor_bytes(tensor);
    if (run->ops->is_measuring && bytes > run->bytes[to]) run->bytes[to] = bytes;
    assert(bytes <= run->bytes[to]);
    return tensor;
}

static m2_tensor *take_like(window_run *run, int to, const m2_tensor *x, int64_t channels)
{
    return take(run, to, x->shape[0], x->shape[1], x->shape[2], channels);
}

static m2_status go_on(const window_run *run)
{
    return run->sink && run->sink->check ? run->sink->check(run->sink->user) : M2_OK;
}

/* Convolve buffer `from` into `to`, or through it back into `from` where the convolution has a
 * depthwise part; gives the one that holds the result.  `from` is lost. */
static int convolve(window_run *run, const m2_turbo_conv *conv, int from, int to)
{
    const m2_ops *ops = run->ops;
    m2_conv_args args = {
        .w = &conv->w, .bias = &conv->bias, .kernel = { 1, 1, 1 }, .dilation = 1, .pad_left = -1
    };
    if (conv->is_depthwise) {
        m2_conv_depthwise_args depthwise = { .w = &conv->depthwise, .bias = &conv->depthwise_bias };
        memcpy(depthwise.kernel, conv->kernel, sizeof depthwise.kernel);
        depthwise.x = &run->t[from];
        depthwise.y = take_like(run, to, depthwise.x, conv->c_in);
        ops->conv_depthwise(ops, &depthwise);
        const int swap = from;
        from = to;
        to = swap;
    } else {
        memcpy(args.kernel, conv->kernel, sizeof args.kernel);
    }
    args.x = &run->t[from];
    args.y = take_like(run, to, args.x, conv->c_out);
    ops->conv(ops, &args);
    return to;
}

static void norm(window_run *run, int from, int to, float eps, m2_activation activation)
{
    const m2_tensor *x = &run->t[from];
    m2_tensor *y = from == to ? &run->t[to] : take_like(run, to, x, x->shape[3]);
    run->ops->rms_act(run->ops,
                      &(m2_rms_act_args){ .x = x, .eps = eps, .activation = activation, .y = y });
}

static int other_than(int a, int b)
{
    return 3 - a - b;
}

/* The residual block on buffer x; gives the buffer of the result. */
static int residual(window_run *run, const m2_turbo_res *res, int x)
{
    const int a = (x + 1) % N_BUFFERS, b = (x + 2) % N_BUFFERS;
    int sum = x, free_a = a, free_b = b;
    if (res->has_shortcut) {
        norm(run, x, a, run->turbo->config.shortcut_eps, M2_ACT_NONE);
        sum = convolve(run, &res->shortcut, a, b);
        free_a = other_than(x, sum);
        free_b = x; /* its last use is the first norm below */
    }
    norm(run, x, free_a, NORM_EPS, res->first);
    const int middle = convolve(run, &res->conv1, free_a, free_b);
    norm(run, middle, middle, NORM_EPS, M2_ACT_SILU);
    const int last = convolve(run, &res->conv2, middle, middle == free_a ? free_b : free_a);
    run->ops->add(run->ops,
                  &(m2_add_args){ .a = &run->t[sum], .b = &run->t[last], .y = &run->t[sum] });
    return sum;
}

static int upsample(window_run *run, const m2_turbo_block *block, int x, int is_first)
{
    const m2_ops *ops = run->ops;
    const int a = (x + 1) % N_BUFFERS;
    if (block->has_time) {
        const int doubled = convolve(run, &block->time_conv, x, a);
        const m2_tensor *from = &run->t[doubled];
        m2_tensor *to = take(run, x, 2 * from->shape[0] - is_first, from->shape[1], from->shape[2],
                             from->shape[3] / 2);
        ops->split_time(ops, &(m2_split_time_args){ .x = from, .n_drop = is_first, .y = to });
    }
    const m2_tensor *small = &run->t[x];
    m2_tensor *large =
        take(run, a, small->shape[0], 2 * small->shape[1], 2 * small->shape[2], small->shape[3]);
    ops->upsample_nearest(ops,
                          &(m2_upsample_nearest_args){ .x = small, .fh = 2, .fw = 2, .y = large });
    return convolve(run, &block->resample, a, x);
}

static int shuffle(window_run *run, int from, int to, int column_outer)
{
    const m2_tensor *x = &run->t[from];
    m2_tensor *y = take(run, to, x->shape[0], 2 * x->shape[1], 2 * x->shape[2], x->shape[3] / 4);
    run->ops->pixel_shuffle(
        run->ops, &(m2_pixel_shuffle_args){ .x = x, .column_outer = column_outer, .y = y });
    return to;
}

/* The two heads disagree on which parity of a pixel is the outer one of its channel. */
static int head(window_run *run, int x)
{
    const m2_turbo *turbo = run->turbo;
    const int a = (x + 1) % N_BUFFERS;
    norm(run, x, x, NORM_EPS, M2_ACT_SILU);
    if (!turbo->config.has_shuffle_head)
        return shuffle(run, convolve(run, &turbo->conv_out, x, a), x, 1);
    x = shuffle(run, convolve(run, &turbo->head_upsampler, x, a), x, 0);
    norm(run, x, x, NORM_EPS, M2_ACT_SILU);
    return convolve(run, &turbo->conv_out, x, a);
}

static m2_status run_block(window_run *run, const m2_turbo_block *block, int is_first, int *x)
{
    if (block->has_change) *x = residual(run, &block->change, *x);
    M2_TRY(go_on(run));
    if (block->has_upsampler) *x = upsample(run, block, *x, is_first);
    M2_TRY(go_on(run));
    for (int i = 0; i < block->n_resnets; i++) {
        *x = residual(run, &block->resnets[i], *x);
        M2_TRY(go_on(run));
    }
    return M2_OK;
}

/* From the latent to the network's output, in buffer *x_out. */
static m2_status run_window(window_run *run, const m2_tensor *latent, const m2_turbo_window *window,
                            int *x_out)
{
    const m2_turbo *turbo = run->turbo;
    m2_tensor *z =
        take(run, 0, window->n_latents, latent->shape[2], latent->shape[3], M2_LATENT_CHANNELS);
    run->ops->denormalise(run->ops, &(m2_denormalise_args){ .z = latent,
                                                            .mean = &turbo->mean,
                                                            .std = &turbo->std,
                                                            .t_begin = window->latent_begin,
                                                            .y = z });
    int x = convolve(run, &turbo->conv_in, 0, 1);
    M2_TRY(run_block(run, &turbo->mid, 0, &x));
    for (int b = 0; b < turbo->config.n_blocks; b++)
        M2_TRY(run_block(run, &turbo->blocks[b], window->is_first, &x));
    *x_out = head(run, x);
    return M2_OK;
}

/* Values that are not finite would become black pixels without a word. */
static m2_status check_finite(const m2_ops *ops, m2_arena *step, const m2_tensor *frames,
                              const m2_turbo_window *window)
{
    m2_tensor flag = m2_tensor_make(step, M2_I32, 1);
    int32_t value = 0;
    ops->upload(ops, &flag, &value);
    ops->find_nonfinite(ops, &(m2_find_nonfinite_args){ .x = frames, .flag = &flag });
    ops->download(ops, &value, &flag);
    if (!value) return M2_OK;
    return m2_fail(
        M2_ERR_NUMERIC,
        "the video decoder gives values that are not finite in frames %lld to %lld; a damaged "
        "weight file is likely: compare checksums with the release's",
        (long long)window->first_frame, (long long)(window->first_frame + window->n_frames - 1));
}

m2_status m2_turbo_decode_window(const m2_turbo *turbo, const m2_ops *ops, m2_arena *step,
                                 const m2_tensor *latent, const m2_turbo_window *window,
                                 m2_dtype frames_dtype, const m2_turbo_sink *sink,
                                 m2_tensor *frames_out)
{
    assert(latent->n_dims == 4 && latent->shape[0] == M2_LATENT_CHANNELS);
    assert(frames_dtype == M2_U8 || frames_dtype == turbo->dtype);
    m2_ops measure;
    m2_ops_init_measure(&measure);
    int x = 0;
    window_run run = { .turbo = turbo, .ops = &measure };
    M2_TRY(run_window(&run, latent, window, &x));
    for (int i = 0; i < N_BUFFERS; i++) run.data[i] = m2_arena_alloc(step, run.bytes[i]);
    run.ops = ops;
    run.sink = sink;
    M2_TRY(run_window(&run, latent, window, &x));

    const m2_tensor kept =
        m2_tensor_rows(&run.t[x], window->n_drop, window->n_drop + window->n_frames);
    if (frames_dtype != M2_U8) {
        *frames_out = kept;
        return M2_OK;
    }
    *frames_out = m2_tensor_new(step, M2_U8, kept.n_dims, kept.shape);
    ops->frames_u8(ops, &(m2_frames_u8_args){ .x = &kept, .y = frames_out });
    return check_finite(ops, step, &kept, window);
}

m2_status m2_turbo_decode(const m2_turbo *turbo, const m2_ops *ops, m2_arena *step,
                          const m2_tensor *latent, m2_dtype frames_dtype, const m2_turbo_sink *sink)
{
    const int64_t n_latents = latent->shape[1];
    const int64_t n_windows = m2_turbo_n_windows(&turbo->config, n_latents);
    for (int64_t i = 0; i < n_windows; i++) {
        const m2_turbo_window window = m2_turbo_window_at(&turbo->config, n_latents, i);
        const size_t mark = m2_arena_save(step);
        m2_tensor frames;
        m2_status status =
            m2_turbo_decode_window(turbo, ops, step, latent, &window, frames_dtype, sink, &frames);
        if (status == M2_OK && !ops->is_measuring)
            status = sink->emit(sink->user, window.first_frame, &frames);
        m2_arena_restore(step, mark);
        M2_TRY(status);
    }
    return M2_OK;
}
