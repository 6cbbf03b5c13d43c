#include "model/dit/preview_parts.h"

#include "backend/device.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static m2_status create(const m2_arch_config *arch, int n_time_channels, m2_preview **preview_out)
{
    m2_preview_sizes sizes;
    M2_TRY(m2_preview_sizes_init(arch, &sizes));
    if (n_time_channels < 0 || n_time_channels % 2 != 0 || n_time_channels > sizes.residual)
        return m2_fail(M2_ERR_MODEL, "time_channel_dim is %d, must be even and from 0 to %lld",
                       n_time_channels, (long long)sizes.residual);
    m2_preview *preview = calloc(1, sizeof *preview);
    if (preview)
        preview->weights.layers =
            calloc((size_t)arch->num_layers, sizeof(m2_preview_layer_weights));
    if (!preview || !preview->weights.layers) {
        m2_preview_close(preview);
        return m2_fail(M2_ERR_MEMORY, "no memory for %d layers", arch->num_layers);
    }
    preview->arch = *arch;
    preview->sizes = sizes;
    preview->n_time_channels = n_time_channels;
    *preview_out = preview;
    return M2_OK;
}

static int has_experts(const m2_arch_config *arch)
{
    for (int i = 0; i < arch->num_layers; i++)
        if (arch->is_moe_layer[i]) return 1;
    return 0;
}

/* Before a weight is read. */
static m2_status check_config(const m2_arch_config *arch, const m2_ops *ops)
{
    const m2_device_limits *limits = ops->device_api->limits;
    if (!limits) return M2_OK;
    M2_TRY(m2_device_check_size("arch_config.head_dim", arch->head_dim, limits->head_dim));
    if (!has_experts(arch)) return M2_OK;
    M2_TRY(m2_device_check_size("arch_config.moe_config.num_experts", arch->moe_num_experts,
                                limits->n_experts));
    return m2_device_check_size("arch_config.moe_config.top_k", arch->moe_top_k, limits->top_k);
}

static m2_status check_tokens(const m2_arch_config *arch, const m2_ops *ops, int64_t n_tokens)
{
    const m2_device_limits *limits = ops->device_api->limits;
    if (!limits) return M2_OK;
    M2_TRY(m2_device_check_size("tokens of both branches", n_tokens, limits->stream_tokens));
    if (!has_experts(arch)) return M2_OK;
    return m2_device_check_size(
        "tokens of both branches", n_tokens,
        limits->routed_tokens(arch->moe_num_heads, arch->moe_num_experts, arch->moe_top_k));
}

m2_status m2_preview_open(const m2_checkpoint *checkpoint, const m2_arch_config *arch,
                          int n_time_channels, const m2_ops *ops, m2_arena *arena,
                          m2_preview **preview_out)
{
    m2_preview *preview = NULL;
    M2_TRY(check_config(arch, ops));
    M2_TRY(create(arch, n_time_channels, &preview));
    const m2_status status =
        m2_preview_weights_bind(checkpoint, arch, ops, arena, &preview->weights);
    if (status != M2_OK) {
        m2_preview_close(preview);
        return status;
    }
    *preview_out = preview;
    return M2_OK;
}

m2_status m2_preview_open_shapes(const m2_arch_config *arch, int n_time_channels,
                                 m2_preview **preview_out)
{
    m2_preview *preview = NULL;
    M2_TRY(create(arch, n_time_channels, &preview));
    m2_status status = m2_preview_weights_shapes(arch, &preview->weights);
    if (status != M2_OK) {
        m2_preview_close(preview);
        return status;
    }
    *preview_out = preview;
    return M2_OK;
}

void m2_preview_close(m2_preview *preview)
{
    if (!preview) return;
    free(preview->weights.layers);
    free(preview);
}

const m2_preview_sizes *m2_preview_sizes_of(const m2_preview *preview)
{
    return &preview->sizes;
}

const m2_preview_weights *m2_preview_weights_of(const m2_preview *preview)
{
    return &preview->weights;
}

static preview_call begin_call(const m2_preview *preview, const m2_ops *ops, m2_arena *arena,
                               const m2_preview_request *request, const m2_preview_hooks *hooks)
{
    preview_call call = { preview, ops, arena, request, { 0 }, -1 };
    if (hooks) call.hooks = *hooks;
    return call;
}

/* ---- once per request --------------------------------------------------------------------- */

/* features [n, channels] f32 -> rows [n, R] f32 with the time channels of `tau` [n] in place. */
static m2_tensor embed(const preview_call *call, const m2_tensor *features, const m2_tensor *w,
                       const m2_tensor *bias, const m2_tensor *tau)
{
    m2_tensor rows = m2_preview_linear(call, features, w, bias, NULL, M2_F32);
    call->ops->time_channels(
        call->ops, &(m2_time_channels_args){
                       .tau = tau, .n_channels = call->net->n_time_channels, .x = &rows });
    return rows;
}

static void convert(const preview_call *call, const m2_tensor *x, m2_tensor *y)
{
    call->ops->convert(call->ops, &(m2_convert_args){ .x = x, .y = y });
}

/* x [channels, ...] f32 as token features [positions, channels]. */
static m2_tensor features_of_latent(const preview_call *call, const m2_tensor *x)
{
    const int64_t channels = x->shape[0], n = m2_tensor_count(x) / channels;
    const m2_tensor planes = m2_tensor_over(x->data, M2_F32, channels, n);
    m2_tensor features = m2_tensor_make(call->arena, M2_F32, n, channels);
    call->ops->transpose(call->ops, &(m2_transpose_args){ .x = &planes, .y = &features });
    return features;
}

/* Text features of both branches, each followed by the special tokens: rows of the text group. */
static void embed_text(const preview_call *call, const m2_preview_conditions *conditions,
                       const m2_tensor *tau, m2_tensor *rows_out)
{
    const m2_packing *packing = &call->request->packing;
    const m2_preview_weights *w = &call->net->weights;
    const int64_t begin = packing->groups.begin[M2_TEXT], n = rows_out->shape[0];
    if (n == 0) return;
    const size_t mark = m2_arena_save(call->arena);

    m2_tensor features = m2_tensor_make(call->arena, M2_F32, n, call->net->sizes.text_channels);
    for (int b = 0; b < M2_BRANCHES; b++) {
        const int64_t text = packing->text_begin[b] - begin;
        const int64_t special = packing->special_begin[b] - begin;
        m2_tensor to = m2_tensor_rows(&features, text, special);
        if (to.shape[0] > 0) convert(call, conditions->text[b], &to);
        to = m2_tensor_rows(&features, special, special + packing->shape.n_images);
        if (to.shape[0] > 0) convert(call, conditions->special, &to);
    }
    m2_preview_show(call, "features.text", &features);
    const m2_tensor tau_text = m2_tensor_rows(tau, 0, n);
    const m2_tensor rows = embed(call, &features, &w->text_w, &w->text_b, &tau_text);
    m2_preview_show(call, "pre.text", &rows);
    convert(call, &rows, rows_out);
    m2_arena_restore(call->arena, mark);
}

/* Patches of all images, one after the other, as video tokens at time 0.  Without a reference the
 * unconditional branch keeps the tokens, with features of zero. */
static void embed_patches(const preview_call *call, const m2_preview_conditions *conditions,
                          int branch, const m2_tensor *tau, const void *zeros, m2_tensor *rows_out)
{
    const m2_packing *packing = &call->request->packing;
    const m2_preview_weights *w = &call->net->weights;
    const int64_t n = packing->n_patches;
    if (n == 0) return;
    const size_t mark = m2_arena_save(call->arena);

    m2_tensor features = m2_tensor_make(call->arena, M2_F32, n, call->net->sizes.video_channels);
    if (branch == 1 && !packing->shape.use_ref_for_uncond) {
        call->ops->upload(call->ops, &features, zeros);
    } else {
        int64_t begin = 0;
        for (int k = 0; k < packing->shape.n_images; k++) {
            const int64_t end =
                begin + packing->shape.image_height[k] * packing->shape.image_width[k];
            void *values = conditions->images[k] ? conditions->images[k]->data : NULL; /* a plan */
            const m2_tensor planes =
                m2_tensor_over(values, M2_F32, call->net->sizes.video_channels, end - begin);
            m2_tensor to = m2_tensor_rows(&features, begin, end);
            call->ops->transpose(call->ops, &(m2_transpose_args){ .x = &planes, .y = &to });
            begin = end;
        }
    }
    m2_preview_show(call, branch ? "features.patches1" : "features.patches0", &features);
    const m2_tensor tau_patches = m2_tensor_rows(tau, 0, n);
    const m2_tensor rows = embed(call, &features, &w->video_w, &w->video_b, &tau_patches);
    m2_preview_show(call, branch ? "pre.patches1" : "pre.patches0", &rows);
    convert(call, &rows, rows_out);
    m2_arena_restore(call->arena, mark);
}

/* Orders and rotary tables; `host` has room for the coordinates. */
static void lay_out_orders(const preview_call *call, void *host, m2_preview_request *request)
{
    const m2_packing *packing = &request->packing;
    const int64_t n = packing->n_tokens;
    const size_t mark = m2_arena_save(call->arena);

    m2_packing_orders(packing, host, NULL);
    call->ops->upload(call->ops, &request->seq, host);
    m2_packing_orders(packing, NULL, host);
    call->ops->upload(call->ops, &request->row, host);
    m2_packing_coords(packing, host);
    m2_tensor in_seq = m2_tensor_make(call->arena, M2_F32, n, M2_COORDS);
    call->ops->upload(call->ops, &in_seq, host);
    m2_tensor coords = m2_tensor_make(call->arena, M2_F32, n, M2_COORDS);
    call->ops->gather_rows(
        call->ops, &(m2_gather_rows_args){ .x = &in_seq, .idx = &request->seq, .y = &coords });
    call->ops->rope_table(call->ops, &(m2_rope_table_args){ .coords = &coords,
                                                            .bands = &call->net->weights.rope_bands,
                                                            .table = &request->rope });
    m2_preview_show(call, "rope", &request->rope);
    m2_arena_restore(call->arena, mark);
}

static int64_t largest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

m2_status m2_preview_prepare(const m2_preview *preview, const m2_ops *ops, m2_arena *request,
                             m2_arena *step, const m2_preview_shape *shape,
                             const m2_preview_conditions *conditions, const m2_preview_hooks *hooks,
                             m2_preview_request *request_out)
{
    const m2_preview_sizes *sizes = &preview->sizes;
    m2_preview_request laid = { 0 };
    M2_TRY(m2_packing_init(&laid.packing, shape));
    const m2_packing *packing = &laid.packing;
    const int64_t n = packing->n_tokens, n_patches = packing->n_patches;
    M2_TRY(check_config(&preview->arch, ops));
    M2_TRY(check_tokens(&preview->arch, ops, n));
    const int64_t n_text = packing->groups.begin[M2_TEXT + 1] - packing->groups.begin[M2_TEXT];

    /* Four-byte zeros and coordinates for uploads. */
    const int64_t n_host = largest(n * M2_COORDS, n_patches * sizes->video_channels);
    void *host = calloc((size_t)n_host, sizeof(float));
    if (!host)
        return m2_fail(M2_ERR_MEMORY, "no memory for the coordinates of %lld tokens", (long long)n);

    laid.seq = m2_tensor_make(request, M2_I32, n);
    laid.row = m2_tensor_make(request, M2_I32, n);
    laid.rope = m2_tensor_make(request, M2_F32, n, 6 * sizes->n_bands);
    laid.first_row = m2_tensor_make(request, M2_I32, largest(packing->n_video, shape->audio_len));
    laid.text_rows = m2_tensor_make(request, M2_BF16, n_text, sizes->residual);
    for (int b = 0; b < M2_BRANCHES; b++)
        laid.patch_rows[b] = m2_tensor_make(request, M2_BF16, n_patches, sizes->residual);

    const preview_call call = begin_call(preview, ops, step, &laid, hooks);
    const size_t mark = m2_arena_save(step);
    m2_tensor tau = m2_tensor_make(step, M2_F32, largest(n_text, n_patches));
    ops->upload(ops, &laid.first_row, host);
    ops->upload(ops, &tau, host);
    const m2_preview_conditions none = { 0 };
    embed_text(&call, conditions ? conditions : &none, &tau, &laid.text_rows);
    for (int b = 0; b < M2_BRANCHES; b++)
        embed_patches(&call, conditions ? conditions : &none, b, &tau, host, &laid.patch_rows[b]);
    lay_out_orders(&call, host, &laid);
    m2_arena_restore(step, mark);
    free(host);
    *request_out = laid;
    return M2_OK;
}

/* ---- every step ---------------------------------------------------------------------------- */

/* The rows [begin, begin + count of x) of s become x in bf16. */
static void place(const preview_call *call, const m2_tensor *x, m2_tensor *s, int64_t begin)
{
    if (x->shape[0] == 0) return;
    m2_tensor rows = m2_tensor_rows(s, begin, begin + x->shape[0]);
    convert(call, x, &rows);
}

float m2_preview_tau(int timestep)
{
    return (float)timestep / 1000.0f;
}

/* The streams of every token; both branches see the same latents. */
static void pre_adapter(const preview_call *call, const m2_preview_step *step, m2_tensor *s)
{
    const m2_preview_request *request = call->request;
    const m2_packing *packing = &request->packing;
    const m2_preview_weights *w = &call->net->weights;
    const m2_ops *ops = call->ops;
    const size_t mark = m2_arena_save(call->arena);

    m2_tensor tau_now = m2_tensor_make(call->arena, M2_F32, 1);
    m2_tensor tau = m2_tensor_make(call->arena, M2_F32, request->first_row.shape[0]);
    if (step->tau) {
        ops->gather_rows(
            ops, &(m2_gather_rows_args){ .x = step->tau, .idx = step->counter, .y = &tau_now });
    } else {
        const float now = m2_preview_tau(step->timestep);
        ops->upload(ops, &tau_now, &now);
    }
    ops->gather_rows(
        ops, &(m2_gather_rows_args){ .x = &tau_now, .idx = &request->first_row, .y = &tau });

    const size_t inner = m2_arena_save(call->arena);
    const m2_tensor video = features_of_latent(call, step->video);
    m2_preview_show(call, "features.video", &video);
    const m2_tensor tau_video = m2_tensor_rows(&tau, 0, packing->n_video);
    const m2_tensor video_rows = embed(call, &video, &w->video_w, &w->video_b, &tau_video);
    m2_preview_show(call, "pre.video", &video_rows);
    for (int b = 0; b < M2_BRANCHES; b++) place(call, &video_rows, s, packing->video_begin[b]);
    m2_arena_restore(call->arena, inner);

    m2_preview_show(call, "features.audio", step->audio);
    const m2_tensor tau_audio = m2_tensor_rows(&tau, 0, packing->shape.audio_len);
    const m2_tensor audio_rows = embed(call, step->audio, &w->audio_w, &w->audio_b, &tau_audio);
    m2_preview_show(call, "pre.audio", &audio_rows);
    for (int b = 0; b < M2_BRANCHES; b++) place(call, &audio_rows, s, packing->audio_begin[b]);

    place(call, &request->text_rows, s, packing->groups.begin[M2_TEXT]);
    for (int b = 0; b < M2_BRANCHES; b++)
        place(call, &request->patch_rows[b], s, packing->patches_begin[b]);
    m2_arena_restore(call->arena, mark);
}

/* Final norm and projection of the rows [begin, begin + n): [n, channels] f32. */
static m2_tensor project(const preview_call *call, const m2_tensor *s, int64_t begin, int64_t n,
                         const m2_tensor *norm, const m2_tensor *w)
{
    const int64_t width = call->net->sizes.residual;
    const m2_tensor flat = m2_tensor_over(s->data, M2_BF16, s->shape[0], width);
    const m2_tensor rows = m2_tensor_rows(&flat, begin, begin + n);
    m2_tensor normed = m2_tensor_make(call->arena, M2_F32, n, width);
    call->ops->rms_norm(
        call->ops,
        &(m2_rms_norm_args){
            .x = &rows, .w = norm, .eps = M2_PREVIEW_EPS, .weight_offset = 1.0f, .y = &normed });
    return m2_preview_linear(call, &normed, w, NULL, NULL, M2_F32);
}

static void post_adapter(const preview_call *call, const m2_tensor *s, const m2_preview_step *step)
{
    const m2_packing *packing = &call->request->packing;
    const m2_preview_weights *w = &call->net->weights;
    const int64_t n_video = packing->n_video, n_audio = packing->shape.audio_len;
    const int64_t channels = call->net->sizes.video_channels;
    const size_t mark = m2_arena_save(call->arena);

    for (int b = 0; b < M2_BRANCHES; b++) {
        const m2_tensor video =
            project(call, s, packing->video_begin[b], n_video, &w->video_norm, &w->video_linear);
        const m2_tensor one = m2_tensor_rows(step->video_out, b, b + 1);
        m2_tensor planes = m2_tensor_over(one.data, M2_F32, channels, n_video);
        call->ops->transpose(call->ops, &(m2_transpose_args){ .x = &video, .y = &planes });
        m2_arena_restore(call->arena, mark);

        const m2_tensor audio =
            project(call, s, packing->audio_begin[b], n_audio, &w->audio_norm, &w->audio_linear);
        m2_tensor audio_out = m2_tensor_rows(step->audio_out, b, b + 1);
        convert(call, &audio, &audio_out);
        m2_arena_restore(call->arena, mark);
    }
}

void m2_preview_forward(const m2_preview *preview, const m2_ops *ops, m2_arena *step_arena,
                        const m2_preview_request *request, const m2_preview_step *step,
                        const m2_preview_hooks *hooks)
{
    preview_call call = begin_call(preview, ops, step_arena, request, hooks);
    const m2_packing *packing = &request->packing;
    assert(m2_tensor_count(step->video) == preview->sizes.video_channels * packing->n_video);
    assert(step->audio->shape[0] == packing->shape.audio_len);
    assert(m2_tensor_count(step->video_out) == M2_BRANCHES * m2_tensor_count(step->video));
    assert(m2_tensor_count(step->audio_out) == M2_BRANCHES * m2_tensor_count(step->audio));

    const size_t mark = m2_arena_save(step_arena);
    m2_tensor s =
        m2_tensor_make(step_arena, M2_BF16, packing->n_tokens, M2_STREAMS, preview->sizes.hidden);
    pre_adapter(&call, step, &s);
    m2_preview_show(&call, "pre", &s);
    m2_preview_run_layers(&call, 0, preview->arch.num_layers, &s);
    post_adapter(&call, &s, step);
    m2_arena_restore(step_arena, mark);
}

void m2_preview_layer(const m2_preview *preview, const m2_ops *ops, m2_arena *step_arena,
                      const m2_preview_request *request, int layer_idx, m2_tensor *s,
                      const m2_preview_hooks *hooks)
{
    preview_call call = begin_call(preview, ops, step_arena, request, hooks);
    assert(layer_idx >= 0 && layer_idx < preview->arch.num_layers);
    m2_preview_run_layers(&call, layer_idx, layer_idx + 1, s);
}
