/* check_dit.c - the whole preview transformer: folders of a small model and its cases.
 *
 * Experts are chosen discontinuously, so choices are judged from recorded layer inputs alone, whole
 * runs with the truth's choices put in, and a free run by how many choices differ.
 */
#include "check_dit.h"
#include "recorded_errors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- what the network shows ------------------------------------------------------------------ */

static void keep(void *user, const char *name, m2_tensor *tensor)
{
    dit_seen *seen = user;
    if (seen->n == seen->room) {
        const int room = seen->room ? seen->room * 2 : 64;
        void *values = golden_alloc(seen->run, (size_t)room * sizeof *seen->values);
        if (seen->n > 0) memcpy(values, seen->values, (size_t)seen->n * sizeof *seen->values);
        seen->values = values;
        seen->room = room;
    }
    m2_tensor copy = *tensor;
    copy.data = golden_alloc(seen->run, m2_tensor_bytes(tensor));
    golden_ops(seen->run)->download(golden_ops(seen->run), copy.data, tensor);
    seen->values[seen->n].name = golden_format(seen->run, "%s", name);
    seen->values[seen->n++].tensor = copy;
}

m2_trace dit_trace(dit_seen *seen)
{
    return (m2_trace){ .show = keep, .user = seen };
}

const m2_tensor *dit_find(const dit_seen *seen, const char *name_format, ...)
{
    char name[128];
    va_list args;
    va_start(args, name_format);
    vsnprintf(name, sizeof name, name_format, args);
    va_end(args);
    for (int i = 0; i < seen->n; i++)
        if (strcmp(seen->values[i].name, name) == 0) return &seen->values[i].tensor;
    golden_result(seen->run, 0, name, "the network did not show it");
    return NULL;
}

/* ---- orders ---------------------------------------------------------------------------------- */

static void *reorder(const dit_case *c, const char *values, int64_t n_heads, size_t row_bytes,
                     int to_sequence)
{
    char *moved = golden_alloc(c->run, (size_t)(n_heads * c->n) * row_bytes);
    for (int64_t h = 0; h < n_heads; h++) {
        for (int64_t r = 0; r < c->n; r++) {
            const size_t row = (size_t)(h * c->n + r), seq = (size_t)(h * c->n + c->seq_of_row[r]);
            const size_t from = to_sequence ? row : seq, to = to_sequence ? seq : row;
            memcpy(moved + to * row_bytes, values + from * row_bytes, row_bytes);
        }
    }
    return moved;
}

void *dit_heads_reordered(const dit_case *c, const void *values, int64_t n_heads, size_t row_bytes,
                          int to_sequence)
{
    return reorder(c, values, n_heads, row_bytes, to_sequence);
}

void *dit_to_sequence(const dit_case *c, const void *rows, size_t row_bytes)
{
    return reorder(c, rows, 1, row_bytes, 1);
}

void *dit_to_modality(const dit_case *c, const void *rows, size_t row_bytes)
{
    return reorder(c, rows, 1, row_bytes, 0);
}

/* ---- verdicts -------------------------------------------------------------------------------- */

void dit_judge(dit_case *c, const char *what, const m2_tensor *ours, const char *reference,
               const char *truth, const char *report_name)
{
    what = golden_format(c->run, "%s %s", c->name, what);
    golden_judge(c->file, what, ours, reference, truth, 2);
    recorded_errors_check(c->run, c->report, c->file, c->name, report_name, reference, truth);
}

/* ---- one case -------------------------------------------------------------------------------- */

static int keeps_reference(golden_file *file)
{
    const char *text = golden_metadata(file, "case");
    json_t *root = text ? json_loads(text, 0, NULL) : NULL;
    const int keeps = !json_is_false(json_object_get(root, "keep_ref"));
    json_decref(root);
    return keeps;
}

/* Latents of the images, each cut to its own size: [channels, h * w]. */
static int take_images(dit_case *c, m2_preview_shape *shape, m2_tensor *images)
{
    if (!golden_has(c->file, "in.ref_image_feat")) return 1;
    const m2_tensor feat = golden_tensor(c->file, "in.ref_image_feat", M2_F32);
    const m2_tensor len = golden_tensor(c->file, "in.ref_image_feat_len", M2_I64);
    if (!feat.data || !len.data || feat.n_dims != 6 || len.n_dims != 3) return 0;
    const int64_t channels = feat.shape[2], H = feat.shape[4], W = feat.shape[5];
    if (feat.shape[1] > M2_PREVIEW_IMAGES_MAX || feat.shape[3] != 1) return 0;
    shape->n_images = (int)feat.shape[1];
    for (int k = 0; k < shape->n_images; k++) {
        const int64_t h = ((const int64_t *)len.data)[2 * k];
        const int64_t w = ((const int64_t *)len.data)[2 * k + 1];
        if (h < 1 || w < 1 || h > H || w > W) return 0;
        float *planes = golden_alloc(c->run, (size_t)(channels * h * w) * sizeof *planes);
        for (int64_t i = 0; i < channels * h * w; i++)
            planes[i] = ((const float *)
                             feat.data)[((k * channels + i / (h * w)) * H + i / w % h) * W + i % w];
        images[k] = m2_tensor_over(planes, M2_F32, channels, h * w);
        images[k] = golden_to_device(c->run, &images[k]);
        shape->image_height[k] = h;
        shape->image_width[k] = w;
    }
    return 1;
}

/* Measure the request and one step, then lay them out in arenas of exactly that size. */
static m2_status lay_out(dit_case *c, const m2_preview_shape *shape,
                         const m2_preview_conditions *conditions)
{
    m2_ops measure;
    m2_arena request, step;
    m2_preview_request planned;
    golden_init_measure(c->run, &measure);
    m2_arena_init_measuring(&request, "request");
    m2_arena_init_measuring(&step, "step");
    M2_TRY(m2_preview_prepare(c->net, &measure, &request, &step, shape, NULL, NULL, &planned));
    m2_preview_forward(c->net, &measure, &step, &planned, &c->step, NULL);
    M2_TRY(golden_arena(c->run, &c->request_arena, "request", request.peak));
    M2_TRY(golden_arena(c->run, &c->step_arena, "step", step.peak));
    const m2_trace trace = dit_trace(&c->prepared);
    return m2_preview_prepare(c->net, golden_ops(c->run), &c->request_arena, &c->step_arena, shape,
                              conditions, &(m2_preview_hooks){ .trace = &trace }, &c->request);
}

static int set_up(dit_case *c)
{
    golden_run *run = c->run;
    const m2_tensor latent = golden_tensor(c->file, "in.latent", M2_F32);
    const m2_tensor audio = golden_tensor(c->file, "in.audio_latent", M2_F32);
    const m2_tensor text[2] = { golden_tensor(c->file, "in.txt_feat", M2_BF16),
                                golden_tensor(c->file, "in.null_txt_feat", M2_BF16) };
    const m2_tensor t = golden_tensor(c->file, "in.t", M2_I64);
    m2_preview_shape shape = { .use_ref_for_uncond = keeps_reference(c->file) };
    m2_tensor images[M2_PREVIEW_IMAGES_MAX], special = { 0 };
    if (!latent.data || !audio.data || !text[0].data || !text[1].data || !t.data) return 0;
    if (latent.n_dims != 5 || audio.n_dims != 3 || text[0].n_dims != 3 || text[1].n_dims != 3 ||
        !take_images(c, &shape, images)) {
        golden_result(run, 0, c->name, "inputs have unknown shapes");
        return 0;
    }
    if (shape.n_images > 0) {
        const m2_tensor all = golden_tensor(c->file, "in.ref_special", M2_BF16);
        special = m2_tensor_over(all.data, M2_BF16, all.shape[1], all.shape[2]);
        special = golden_to_device(run, &special);
    }
    shape.frames = latent.shape[2];
    shape.height = latent.shape[3];
    shape.width = latent.shape[4];
    shape.audio_len = audio.shape[1];
    c->video = m2_tensor_wrap(latent.data, M2_F32, 4, latent.shape + 1);
    c->audio = m2_tensor_wrap(audio.data, M2_F32, 2, audio.shape + 1);
    m2_tensor features[2];
    m2_preview_conditions conditions = { .special = &special };
    for (int b = 0; b < M2_BRANCHES; b++) {
        shape.text_len[b] = text[b].shape[1];
        features[b] = m2_tensor_wrap(text[b].data, M2_BF16, 2, text[b].shape + 1);
        features[b] = golden_to_device(run, &features[b]);
        conditions.text[b] = &features[b];
    }
    for (int k = 0; k < shape.n_images; k++) conditions.images[k] = &images[k];
    const int64_t timestep = *(const int64_t *)t.data;
    if (timestep < 0 || timestep > 1000) {
        golden_result(run, 0, c->name, "in.t is %lld", (long long)timestep);
        return 0;
    }
    c->timestep = (int)timestep;
    c->video_out =
        m2_tensor_over(NULL, M2_F32, 2, c->video.shape[0], shape.frames, shape.height, shape.width);
    c->audio_out = m2_tensor_over(NULL, M2_F32, 2, shape.audio_len, c->audio.shape[1]);
    c->video_out.data = golden_alloc(run, m2_tensor_bytes(&c->video_out));
    c->audio_out.data = golden_alloc(run, m2_tensor_bytes(&c->audio_out));
    m2_tensor *const host[] = { &c->video, &c->audio, &c->video_out, &c->audio_out };
    for (int i = 0; i < 4; i++) c->placed[i] = golden_to_device(run, host[i]);
    c->step = (m2_preview_step){ .video = &c->placed[0],
                                 .audio = &c->placed[1],
                                 .timestep = c->timestep,
                                 .video_out = &c->placed[2],
                                 .audio_out = &c->placed[3] };
    if (lay_out(c, &shape, &conditions) != M2_OK) {
        golden_result(run, 0, c->name, "%s", m2_last_error());
        return 0;
    }
    c->n = c->request.packing.n_tokens;
    c->seq_of_row = golden_alloc(run, (size_t)c->n * sizeof *c->seq_of_row);
    m2_packing_orders(&c->request.packing, c->seq_of_row, NULL);
    return 1;
}

static void check_case(dit_case *c)
{
    if (set_up(c)) {
        dit_check_forward(c);
        dit_check_layers(c);
    }
    golden_free_copies(c->run);
    golden_arena_free(c->run, &c->request_arena);
    golden_arena_free(c->run, &c->step_arena);
}

/* ---- folders ---------------------------------------------------------------------------------- */

static void check_cases(golden_run *run, const char *dir, const char *folder, const json_t *report,
                        const m2_preview *net, const m2_model_config *config)
{
    int n_cases = 0;
    for (char **name = golden_list(run, dir, 0); *name; name++) {
        const char *path = golden_format(run, "%s/%s", dir, *name);
        const char *suffix = strrchr(*name, '.');
        if (strcmp(*name, "config.json") == 0) continue;
        if (!suffix || strcmp(suffix, ".safetensors") != 0) {
            golden_result(run, 0, path, "not understood");
            continue;
        }
        dit_case c = { .run = run,
                       .report = report,
                       .net = net,
                       .arch = &config->arch,
                       .n_time_channels = config->eval.time_channel_dim };
        c.prepared.run = run;
        c.name = golden_format(run, "%s/%.*s", folder, (int)(suffix - *name), *name);
        c.file = golden_open(run, path);
        n_cases++;
        if (!c.file) continue;
        check_case(&c);
        golden_close(c.file);
    }
    for (char **name = golden_list(run, dir, 1); *name; name++)
        if (strcmp(*name, "ckpt") != 0)
            golden_result(run, 0, golden_format(run, "%s/%s", dir, *name), "not understood");
    if (n_cases == 0) golden_result(run, 0, dir, "no case in this folder");
}

static m2_status check_model(golden_run *run, const char *dir, const char *folder,
                             const json_t *report)
{
    m2_model_config config;
    m2_checkpoint *checkpoint = NULL;
    m2_preview *net = NULL;
    m2_arena measure = { 0 }, weights = { 0 };
    m2_ops ops;
    golden_init_measure(run, &ops);
    m2_arena_init_measuring(&measure, "weights");
    m2_model_config_init(&config);

    m2_status status = m2_model_config_load(&config, golden_format(run, "%s/config.json", dir));
    if (status != M2_OK) goto done;
    status = m2_checkpoint_open(golden_format(run, "%s/ckpt", dir), &checkpoint);
    if (status != M2_OK) goto done;
    status = m2_preview_open(checkpoint, &config.arch, config.eval.time_channel_dim, &ops, &measure,
                             &net);
    if (status != M2_OK) goto done;
    m2_preview_close(net);
    net = NULL;
    status = golden_arena(run, &weights, "weights", measure.peak);
    if (status != M2_OK) goto done;
    status = m2_preview_open(checkpoint, &config.arch, config.eval.time_channel_dim,
                             golden_ops(run), &weights, &net);
    if (status != M2_OK) goto done;
    check_cases(run, dir, folder, report, net, &config);
done:
    m2_preview_close(net);
    m2_checkpoint_close(checkpoint);
    golden_arena_free(run, &weights);
    m2_model_config_free(&config);
    return status;
}

void golden_check_dit(golden_run *run, const char *dir)
{
    json_t *report = recorded_errors_load(run, dir);
    for (char **name = golden_list(run, dir, 0); *name; name++)
        if (strcmp(*name, "report.json") != 0)
            golden_result(run, 0, golden_format(run, "%s/%s", dir, *name), "not understood");
    for (char **name = golden_list(run, dir, 1); *name; name++) {
        const char *path = golden_format(run, "%s/%s", dir, *name);
        if (check_model(run, path, *name, report) != M2_OK)
            golden_result(run, 0, path, "%s", m2_last_error());
    }
    json_decref(report);
}
