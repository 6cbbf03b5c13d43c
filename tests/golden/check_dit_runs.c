/* check_dit_runs.c - runs of the preview transformer: tokens, layers, free and forced forwards. */
#include "check_dit.h"
#include "recorded_errors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Share of (head, token) pairs that a free run may choose otherwise; the reference itself has 2%. */
#define FREE_SETS_MAX   0.04
#define FREE_COSINE_MIN 0.99

/* ---- tokens ----------------------------------------------------------------------------------- */

static void put_rows(float *rows, int64_t width, int64_t begin, const m2_tensor *part)
{
    if (!part) return;
    const int64_t n = part->shape[0], columns = part->shape[1];
    for (int64_t r = 0; r < n; r++)
        memcpy(rows + (begin + r) * width, (const float *)part->data + r * columns,
               (size_t)columns * sizeof(float));
}

/* Rows "preview.<what>.video" ... in sequence order, [n, width], missing columns 0. */
static float *assemble(dit_case *c, const dit_seen *forward, const char *what, int64_t width)
{
    const m2_packing *p = &c->request.packing;
    float *rows = golden_alloc(c->run, (size_t)(c->n * width) * sizeof *rows);
    for (int b = 0; b < M2_BRANCHES; b++) {
        put_rows(rows, width, p->video_begin[b], dit_find(forward, "preview.%s.video", what));
        put_rows(rows, width, p->audio_begin[b], dit_find(forward, "preview.%s.audio", what));
        if (p->n_patches > 0)
            put_rows(rows, width, p->patches_begin[b],
                     dit_find(&c->prepared, "preview.%s.patches%d", what, b));
    }
    if (p->groups.begin[M2_TEXT + 1] > p->groups.begin[M2_TEXT])
        put_rows(rows, width, p->groups.begin[M2_TEXT],
                 dit_find(&c->prepared, "preview.%s.text", what));
    return dit_to_sequence(c, rows, (size_t)width * sizeof *rows);
}

/* Embedding of one time in f64: cosines, then sines. */
static void time_in_f64(int n_channels, double t, double *channels)
{
    const int half = n_channels / 2;
    for (int i = 0; i < half; i++) {
        const double phase = t * exp(-log(10000.0) * i / half);
        channels[i] = cos(phase);
        channels[half + i] = sin(phase);
    }
}

/* Time of every token: text and pictures stand at 0. */
static int time_of(const dit_case *c, const m2_modality modality, const float *coord)
{
    const int is_patch = modality == M2_VIDEO && coord[0] >= (float)c->request.packing.shape.frames;
    return modality == M2_TEXT || is_patch ? 0 : c->timestep;
}

/* The embedded stream in f64, from our features: [n, R]. */
static double *stream_in_f64(dit_case *c, const float *features, int64_t width,
                             const int32_t *modality, const float *coords)
{
    const m2_preview_weights *w = m2_preview_weights_of(c->net);
    const m2_tensor weight[] = { golden_to_host(c->run, &w->video_w),
                                 golden_to_host(c->run, &w->audio_w),
                                 golden_to_host(c->run, &w->text_w) };
    const m2_tensor bias[] = { golden_to_host(c->run, &w->video_b),
                               golden_to_host(c->run, &w->audio_b),
                               golden_to_host(c->run, &w->text_b) };
    const int64_t R = m2_preview_sizes_of(c->net)->residual;
    double *stream = golden_alloc(c->run, (size_t)(c->n * R) * sizeof *stream);
    for (int64_t r = 0; r < c->n; r++) {
        const m2_tensor *m = &weight[modality[r]];
        for (int64_t j = 0; j < R; j++) {
            double sum = (double)((const float *)bias[modality[r]].data)[j];
            for (int64_t i = 0; i < m->shape[1]; i++)
                sum += (double)((const float *)m->data)[j * m->shape[1] + i] *
                       (double)features[r * width + i];
            stream[r * R + j] = sum;
        }
        time_in_f64(c->n_time_channels, time_of(c, modality[r], coords + r * M2_COORDS),
                    stream + r * R);
    }
    return stream;
}

static double *rope_in_f64(dit_case *c, const float *coords)
{
    const m2_tensor copy = golden_to_host(c->run, &m2_preview_weights_of(c->net)->rope_bands);
    const m2_tensor *bands = &copy;
    const int64_t n_bands = bands->shape[0], width = 6 * n_bands;
    double *table = golden_alloc(c->run, (size_t)(c->n * width) * sizeof *table);
    for (int64_t r = 0; r < c->n; r++) {
        const float *coord = coords + r * M2_COORDS;
        for (int axis = 0; axis < 3; axis++) {
            const double size = (double)coord[3 + axis], reference = (double)coord[6 + axis];
            const double scale = size == 1 && reference == 1 ? 1 : (reference - 1) / (size - 1);
            const double at = ((double)coord[axis] - (axis == 0 ? 0 : (size - 1) / 2)) * scale;
            for (int64_t i = 0; i < n_bands; i++) {
                const double angle = at * (double)((const float *)bands->data)[i];
                table[r * width + axis * n_bands + i] = sin(angle);
                table[r * width + (3 + axis) * n_bands + i] = cos(angle);
            }
        }
    }
    return table;
}

/* The reference's timestep may be one bit off (it multiplies by f32(0.001)): 6.1e-5 at 999. */
#define RECORDED_OFF_MAX 1e-4

/* Ours and the recorded values against our own f64. */
static void judge_f32(dit_case *c, const char *entry, const float *ours, const double *truth,
                      int64_t n)
{
    const m2_tensor recorded = golden_tensor(c->file, entry, M2_F32);
    const char *name = golden_format(c->run, "%s %s", c->name, entry);
    if (!recorded.data) return;
    if (m2_tensor_count(&recorded) != n) {
        golden_result(c->run, 0, name, "%lld values, %lld expected", (long long)n,
                      (long long)m2_tensor_count(&recorded));
        return;
    }
    const double error = golden_relative_error(recorded.data, M2_F32, truth, M2_F64, n);
    golden_judge_values(c->run, name, ours, M2_F32, error, truth, M2_F64, n, 2, GOLDEN_FLOOR_F32);
    recorded_errors_compare(c->run, c->report, c->name, entry,
                            golden_tensor(c->file, entry, M2_F64).data, truth, n);
    int64_t n_off = 0;
    for (int64_t i = 0; i < n; i++) {
        const double off = fabs((double)((const float *)recorded.data)[i] - truth[i]);
        n_off += !(off <= RECORDED_OFF_MAX * (1 + fabs(truth[i])));
    }
    if (n_off > 0)
        golden_result(c->run, 0, name, "%lld recorded values are not the formula's",
                      (long long)n_off);
}

static void exact(dit_case *c, const char *entry, const void *ours, m2_dtype dtype, int64_t n)
{
    const m2_tensor recorded = golden_tensor(c->file, entry, dtype);
    const char *name = golden_format(c->run, "%s %s", c->name, entry);
    if (!recorded.data) return;
    if (m2_tensor_count(&recorded) != n)
        golden_result(c->run, 0, name, "%lld values, %lld expected", (long long)n,
                      (long long)m2_tensor_count(&recorded));
    else
        golden_exact(c->run, name, ours, recorded.data, (size_t)n * m2_dtype_bytes(dtype));
}

void dit_check_tokens(dit_case *c, const dit_seen *forward)
{
    const m2_preview_sizes *sizes = m2_preview_sizes_of(c->net);
    const m2_packing *packing = &c->request.packing;
    const int64_t n = c->n, R = sizes->residual, n_time = c->n_time_channels;
    float *coords = golden_alloc(c->run, (size_t)(n * M2_COORDS) * sizeof *coords);
    int32_t *modality = golden_alloc(c->run, (size_t)n * sizeof *modality);
    m2_packing_coords(packing, coords);
    m2_packing_modalities(packing, modality);
    exact(c, "tok.coords", coords, M2_F32, n * M2_COORDS);
    exact(c, "tok.modality", modality, M2_I32, n);
    exact(c, "tok.cu_seqlens", packing->segments, M2_I64, M2_BRANCHES + 1);
    if (golden_has(c->file, "perm")) exact(c, "perm", c->seq_of_row, M2_I32, n);

    int64_t width = sizes->text_channels;
    width = width > sizes->audio_channels ? width : sizes->audio_channels;
    width = width > sizes->video_channels ? width : sizes->video_channels;
    const float *features = assemble(c, forward, "features", width);
    if (golden_has(c->file, "tok.sequence")) exact(c, "tok.sequence", features, M2_F32, n * width);

    const float *pre = assemble(c, forward, "pre", R);
    const double *stream = stream_in_f64(c, features, width, modality, coords);
    if (golden_has(c->file, "h.pre"))
        judge_f32(c, "h.pre", pre, stream, n * R);
    else
        golden_judge_values(c->run, golden_format(c->run, "%s h.pre (own f64)", c->name), pre,
                            M2_F32, 0, stream, M2_F64, n * R, 2, GOLDEN_FLOOR_F32);
    if (golden_has(c->file, "tok.time")) {
        float *times = golden_alloc(c->run, (size_t)(n * n_time) * sizeof *times);
        double *true_times = golden_alloc(c->run, (size_t)(n * n_time) * sizeof *true_times);
        for (int64_t r = 0; r < n; r++) {
            memcpy(times + r * n_time, pre + r * R, (size_t)n_time * sizeof *times);
            memcpy(true_times + r * n_time, stream + r * R, (size_t)n_time * sizeof *true_times);
        }
        judge_f32(c, "tok.time", times, true_times, n * n_time);
    }
    const m2_tensor *rope = dit_find(&c->prepared, "preview.rope");
    if (golden_has(c->file, "rope") && rope)
        judge_f32(c, "rope", dit_to_sequence(c, rope->data, (size_t)rope->shape[1] * sizeof(float)),
                  rope_in_f64(c, coords), m2_tensor_count(rope));
}

/* ---- choices ---------------------------------------------------------------------------------- */

static int compare_ids(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

static int is_same_set(const int32_t *a, const int32_t *b, int64_t n)
{
    int32_t x[256], y[256];
    if (n > 256) return 0;
    memcpy(x, a, (size_t)n * sizeof *a);
    memcpy(y, b, (size_t)n * sizeof *b);
    qsort(x, (size_t)n, sizeof *x, compare_ids);
    qsort(y, (size_t)n, sizeof *y, compare_ids);
    return memcmp(x, y, (size_t)n * sizeof *x) == 0;
}

int64_t dit_count_other_sets(dit_case *c, int layer, const m2_tensor *ours, const char *which,
                             double gap_min)
{
    const m2_tensor ids =
        golden_tensor(c->file, golden_format(c->run, "moe%d.%s", layer, which), M2_I32);
    const m2_tensor gap =
        golden_tensor(c->file, golden_format(c->run, "moe%d.gap.truth", layer), M2_F32);
    const int64_t Hm = ours->shape[0], top_k = ours->shape[2];
    if (!ids.data || !gap.data) return -1;
    if (m2_tensor_count(&ids) != m2_tensor_count(ours) || m2_tensor_count(&gap) != Hm * c->n) {
        golden_result(c->run, 0, c->name, "moe%d has another shape", layer);
        return -1;
    }
    const int32_t *sequence =
        dit_heads_reordered(c, ours->data, Hm, (size_t)top_k * sizeof(int32_t), 1);
    int64_t n_other = 0;
    for (int64_t r = 0; r < Hm * c->n; r++) {
        if (!((double)((const float *)gap.data)[r] > gap_min)) continue;
        n_other += !is_same_set(sequence + r * top_k, (const int32_t *)ids.data + r * top_k, top_k);
    }
    return n_other;
}

/* Rows of weights that do not sum to the route scale. */
static int64_t count_other_sums(const dit_case *c, const m2_tensor *prob)
{
    const int64_t top_k = prob->shape[2];
    int64_t n_other = 0;
    for (int64_t row = 0; row < m2_tensor_count(prob); row += top_k) {
        double sum = 0;
        for (int64_t k = 0; k < top_k; k++) sum += (double)((const float *)prob->data)[row + k];
        n_other += !(fabs(sum - c->arch->moe_route_scale) <= 1e-5 * c->arch->moe_route_scale);
    }
    return n_other;
}

static int compare_falling(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Distances between the last chosen and the first rejected key, with the truth's experts put in: ours
 * and the truth's must be near, else one of them is about something else. */
#define GAP_OFF_MAX 0.05 /* measured: 0.018 */

static void check_gaps(dit_case *c, int layer, const m2_tensor *logits)
{
    const m2_preview_sizes *sizes = m2_preview_sizes_of(c->net);
    const m2_tensor copy =
        golden_to_host(c->run, &m2_preview_weights_of(c->net)->layers[layer].expert_bias_ema);
    const m2_tensor *bias = &copy;
    const char *name = golden_format(c->run, "moe%d.gap.truth", layer);
    const m2_tensor truth = golden_tensor(c->file, name, M2_F32);
    const int64_t E = sizes->n_experts, n = logits->shape[0] * c->n;
    if (!truth.data || m2_tensor_count(&truth) != n || sizes->top_k == E) return;
    const float *z = dit_heads_reordered(c, logits->data, logits->shape[0], (size_t)E * 4, 1);
    double *keys = golden_alloc(c->run, (size_t)E * sizeof *keys);
    double largest = 0;
    for (int64_t r = 0; r < n; r++) {
        for (int64_t e = 0; e < E; e++)
            keys[e] = 1 / (1 + exp(-(double)z[r * E + e])) +
                      (double)((const float *)bias->data)[r / c->n * E + e];
        qsort(keys, (size_t)E, sizeof *keys, compare_falling);
        const double gap = keys[sizes->top_k - 1] - keys[sizes->top_k];
        largest = fmax(largest, fabs(gap - (double)((const float *)truth.data)[r]));
    }
    golden_result(c->run, largest <= GAP_OFF_MAX, golden_format(c->run, "%s %s", c->name, name),
                  "largest difference %.4f", largest);
}

/* The report's notes say how many sets of the recorded run are those of the truth. */
static void check_notes(dit_case *c, int layer, int64_t n_same, int64_t n_sets)
{
    const json_t *notes = json_object_get(c->report, "notes");
    size_t i;
    json_t *note;
    json_array_foreach((json_t *)notes, i, note)
    {
        const char *text = json_string_value(note);
        const size_t n = strlen(c->name);
        long long same, sets;
        int of_layer;
        if (!text || strncmp(text, c->name, n) != 0 ||
            sscanf(text + n, ": layer %d picks the same expert set as the truth for %lld of %lld",
                   &of_layer, &same, &sets) != 3 ||
            of_layer != layer)
            continue;
        if (same != n_same || sets != n_sets)
            golden_result(c->run, 0, golden_format(c->run, "%s moe%d.topk_idx", c->name, layer),
                          "%lld of %lld sets are the truth's, the notes say %lld of %lld",
                          (long long)n_same, (long long)n_sets, same, sets);
    }
}

/* Weights of the truth's experts, in the truth's order, against the truth; of the recorded run those
 * rows count that chose alike. */
static void check_weights(dit_case *c, int layer, const m2_tensor *ours)
{
    golden_run *run = c->run;
    const m2_tensor ref_idx =
        golden_tensor(c->file, golden_format(run, "moe%d.topk_idx", layer), M2_I32);
    const m2_tensor ref =
        golden_tensor(c->file, golden_format(run, "moe%d.topk_prob", layer), M2_F32);
    const m2_tensor true_idx =
        golden_tensor(c->file, golden_format(run, "moe%d.topk_idx.truth", layer), M2_I32);
    const m2_tensor truth =
        golden_tensor(c->file, golden_format(run, "moe%d.topk_prob.truth", layer), M2_F32);
    if (!ref_idx.data || !ref.data || !true_idx.data || !truth.data) return;
    const int64_t Hm = ours->shape[0], top_k = ours->shape[2], n = m2_tensor_count(ours);
    if (m2_tensor_count(&ref) != n || m2_tensor_count(&truth) != n) return;
    const int64_t n_sums = count_other_sums(c, &ref) + count_other_sums(c, &truth);
    if (n_sums > 0)
        golden_result(run, 0, golden_format(run, "%s moe%d.topk_prob", c->name, layer),
                      "%lld recorded rows do not sum to the route scale", (long long)n_sums);
    const int32_t *a = ref_idx.data, *b = true_idx.data;
    double difference = 0, norm = 0;
    int64_t n_same = 0;
    for (int64_t r = 0; r < n; r += top_k) {
        if (!is_same_set(a + r, b + r, top_k)) continue;
        n_same++;
        for (int64_t k = 0; k < top_k; k++) {
            int64_t j = 0;
            while (j < top_k - 1 && a[r + j] != b[r + k]) j++;
            const double x = (double)((const float *)truth.data)[r + k];
            const double d = (double)((const float *)ref.data)[r + j] - x;
            difference += d * d;
            norm += x * x;
        }
    }
    check_notes(c, layer, n_same, n / top_k);
    const float *sequence =
        dit_heads_reordered(c, ours->data, Hm, (size_t)top_k * sizeof(float), 1);
    golden_judge_values(run, golden_format(run, "%s moe%d.topk_prob", c->name, layer), sequence,
                        M2_F32, norm > 0 ? sqrt(difference / norm) : 0, truth.data, M2_F32, n, 2,
                        GOLDEN_FLOOR_BF16);
}

/* ---- layers, each from its recorded input ------------------------------------------------------- */

static m2_tensor recorded_input(dit_case *c, int layer)
{
    const char *name = layer == 0 ? "h.pre" : golden_format(c->run, "h.layer%d", layer - 1);
    const m2_preview_sizes *sizes = m2_preview_sizes_of(c->net);
    m2_tensor s = golden_tensor(c->file, name, M2_BF16);
    if (s.data)
        s = m2_tensor_over(dit_to_modality(c, s.data, (size_t)sizes->residual * sizeof(m2_bf16)),
                           M2_BF16, c->n, M2_STREAMS, sizes->hidden);
    return s;
}

void dit_check_layers(dit_case *c)
{
    const m2_preview_sizes *sizes = m2_preview_sizes_of(c->net);
    for (int i = 0; i < c->arch->num_layers; i++) {
        const char *truth = golden_format(c->run, "h.layer%d.truth_local", i);
        if (!golden_has(c->file, truth)) continue;
        m2_tensor s = recorded_input(c, i);
        if (!s.data) continue;
        dit_seen seen = { .run = c->run };
        const m2_trace trace = dit_trace(&seen);
        s = golden_to_device(c->run, &s);
        m2_preview_layer(c->net, golden_ops(c->run), &c->step_arena, &c->request, i, &s,
                         &(m2_preview_hooks){ .trace = &trace });
        s = golden_to_host(c->run, &s);
        const m2_tensor out =
            m2_tensor_over(dit_to_sequence(c, s.data, (size_t)sizes->residual * sizeof(m2_bf16)),
                           M2_BF16, c->n, sizes->residual);
        dit_judge(c, golden_format(c->run, "layer %d alone", i), &out,
                  golden_format(c->run, "h.layer%d", i), truth,
                  golden_format(c->run, "h.layer%d (own input)", i));
        if (!c->arch->is_moe_layer[i]) continue;
        const m2_tensor *ids = dit_find(&seen, "preview.%02d.topk_idx", i);
        if (!ids) continue;
        const int64_t n_other = dit_count_other_sets(c, i, ids, "topk_idx", DIT_GAP_MIN);
        golden_result(c->run, n_other == 0, golden_format(c->run, "%s layer %d choice", c->name, i),
                      "%lld of %lld sets differ from the recorded ones", (long long)n_other,
                      (long long)(sizes->n_moe_heads * c->n));
    }
}

/* ---- whole runs -------------------------------------------------------------------------------- */

static double cosine(const m2_tensor *a, const m2_tensor *b)
{
    double ab = 0, aa = 0, bb = 0;
    for (int64_t i = 0; i < m2_tensor_count(a); i++) {
        const double x = (double)((const float *)a->data)[i];
        const double y = (double)((const float *)b->data)[i];
        ab += x * y;
        aa += x * x;
        bb += y * y;
    }
    return ab / sqrt(aa * bb);
}

static void check_cosine(dit_case *c, const char *truth, const m2_tensor *ours)
{
    const m2_tensor values = golden_tensor(c->file, truth, M2_F32);
    if (!values.data) return;
    const double found =
        m2_tensor_count(&values) == m2_tensor_count(ours) ? cosine(ours, &values) : 0;
    golden_result(c->run, found > FREE_COSINE_MIN,
                  golden_format(c->run, "%s free run %s", c->name, truth), "cosine %.6f", found);
}

static void take_outputs(dit_case *c)
{
    c->video_out = golden_to_host(c->run, &c->placed[2]);
    c->audio_out = golden_to_host(c->run, &c->placed[3]);
}

static void run_free(dit_case *c)
{
    dit_seen seen = { .run = c->run };
    const m2_trace trace = dit_trace(&seen);
    m2_preview_forward(c->net, golden_ops(c->run), &c->step_arena, &c->request, &c->step,
                       &(m2_preview_hooks){ .trace = &trace });
    take_outputs(c);
    dit_check_tokens(c, &seen);
    int64_t n_other = 0, n_sets = 0;
    for (int i = 0; i < c->arch->num_layers; i++) {
        const m2_tensor *ids =
            c->arch->is_moe_layer[i] ? dit_find(&seen, "preview.%02d.topk_idx", i) : NULL;
        if (!ids) continue;
        n_sets += ids->shape[0] * c->n;
        n_other += dit_count_other_sets(c, i, ids, "topk_idx.truth", -1);
    }
    golden_result(c->run, (double)n_other <= FREE_SETS_MAX * (double)n_sets,
                  golden_format(c->run, "%s free run choice", c->name),
                  "%lld of %lld sets differ from the truth's", (long long)n_other,
                  (long long)n_sets);
    check_cosine(c, "out.video.truth", &c->video_out);
    check_cosine(c, "out.audio.truth", &c->audio_out);
}

/* The truth's expert ids of every MoE layer, rows in modality order. */
static m2_tensor *forced_ids(dit_case *c)
{
    m2_tensor *forced = golden_alloc(c->run, (size_t)c->arch->num_layers * sizeof *forced);
    for (int i = 0; i < c->arch->num_layers; i++) {
        if (!c->arch->is_moe_layer[i]) continue;
        m2_tensor ids =
            golden_tensor(c->file, golden_format(c->run, "moe%d.topk_idx.truth", i), M2_I32);
        const m2_preview_sizes *sizes = m2_preview_sizes_of(c->net);
        if (!ids.data || ids.n_dims != 3 || ids.shape[0] != sizes->n_moe_heads ||
            ids.shape[1] != c->n || ids.shape[2] != sizes->top_k)
            return NULL;
        for (int64_t k = 0; k < m2_tensor_count(&ids); k++) {
            const int32_t id = ((const int32_t *)ids.data)[k];
            if (id < 0 || id >= sizes->n_experts) return NULL;
        }
        ids.data = dit_heads_reordered(c, ids.data, ids.shape[0],
                                       (size_t)ids.shape[2] * sizeof(int32_t), 0);
        forced[i] = golden_to_device(c->run, &ids);
    }
    return forced;
}

static void run_forced(dit_case *c)
{
    const m2_preview_sizes *sizes = m2_preview_sizes_of(c->net);
    const m2_tensor *forced = forced_ids(c);
    if (!forced) {
        golden_result(c->run, 0, c->name,
                      "moeN.topk_idx.truth has another shape or ids out of range");
        return;
    }
    dit_seen seen = { .run = c->run };
    const m2_trace trace = dit_trace(&seen);
    m2_preview_forward(c->net, golden_ops(c->run), &c->step_arena, &c->request, &c->step,
                       &(m2_preview_hooks){ .trace = &trace, .forced = forced });
    take_outputs(c);
    for (int i = 0; i < c->arch->num_layers; i++) {
        const m2_tensor *probs =
            c->arch->is_moe_layer[i] ? dit_find(&seen, "preview.%02d.topk_prob", i) : NULL;
        if (probs) check_weights(c, i, probs);
        const m2_tensor *logits = probs ? dit_find(&seen, "preview.%02d.moe_logits", i) : NULL;
        if (logits) check_gaps(c, i, logits);
        const char *truth = golden_format(c->run, "h.layer%d.truth", i);
        const m2_tensor *s = dit_find(&seen, "preview.%02d.out", i);
        if (!s || !golden_has(c->file, truth)) continue;
        const m2_tensor out =
            m2_tensor_over(dit_to_sequence(c, s->data, (size_t)sizes->residual * sizeof(m2_bf16)),
                           M2_BF16, c->n, sizes->residual);
        const char *reference = golden_format(c->run, "h.layer%d", i);
        dit_judge(c, golden_format(c->run, "%s from the start", reference), &out, reference, truth,
                  reference);
    }
    dit_judge(c, "out.video", &c->video_out, "out.video", "out.video.truth", "out.video");
    dit_judge(c, "out.audio", &c->audio_out, "out.audio", "out.audio.truth", "out.audio");
}

void dit_check_forward(dit_case *c)
{
    run_free(c);
    run_forced(c);
}
