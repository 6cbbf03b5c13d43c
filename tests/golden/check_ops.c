/* check_ops.c - single operations of the preview transformer: one file each, cases numbered inside.
 *
 * What an operator gives in f32 is judged at f32: the rule for a whole bf16 layer would hide a lost
 * sink, a Sinkhorn of ten rounds or a wrong epsilon.
 */
#include "check_ops.h"

#include <math.h>
#include <string.h>

m2_tensor golden_ops_entry(golden_run *run, golden_file *file, int idx, const char *name,
                           m2_dtype dtype)
{
    return golden_tensor(file, golden_format(run, "%d.%s", idx, name), dtype);
}

m2_tensor golden_ops_make(golden_run *run, m2_dtype dtype, int n_dims, const int64_t *shape)
{
    m2_tensor tensor = m2_tensor_wrap(NULL, dtype, n_dims, shape);
    tensor.data = golden_alloc(run, m2_tensor_bytes(&tensor));
    return tensor;
}

void golden_ops_judge(golden_run *run, golden_file *file, const json_t *report, const char *kind,
                      int idx, const m2_tensor *ours, const char *reference, const char *truth,
                      const char *tensor)
{
    reference = golden_format(run, "%d.%s", idx, reference);
    truth = golden_format(run, "%d.%s", idx, truth);
    golden_judge(file, reference, ours, reference, truth, 2);
    recorded_errors_check(run, report, file, golden_format(run, "%s/%d", kind, idx), tensor,
                          reference, truth);
}

const m2_groups *golden_ops_groups(golden_run *run, const m2_tensor *sizes, int64_t n_rows,
                                   m2_groups *storage)
{
    const int64_t n = m2_tensor_count(sizes);
    *storage = (m2_groups){ .n_groups = (int)n };
    int is_good = n < (int64_t)(sizeof storage->begin / sizeof storage->begin[0]);
    for (int64_t g = 0; g < n && is_good; g++) {
        const int32_t size = ((const int32_t *)sizes->data)[g];
        is_good = size >= 0 && size <= n_rows - storage->begin[g];
        if (is_good) storage->begin[g + 1] = storage->begin[g] + size;
    }
    if (is_good && storage->begin[n] == n_rows) return storage;
    golden_result(run, 0, "sizes", "are not those of groups of %lld rows", (long long)n_rows);
    return NULL;
}

/* Begins of segments rise from 0 to n. */
static int are_segments(golden_run *run, const m2_tensor *segments, int64_t n)
{
    const int64_t *begin = segments->data, count = m2_tensor_count(segments);
    int is_good = segments->data && count >= 2 && begin[0] == 0 && begin[count - 1] == n;
    for (int64_t i = 1; i < count && is_good; i++) is_good = begin[i] >= begin[i - 1];
    if (!is_good) golden_result(run, 0, "cu_seqlens", "are not those of %lld tokens", (long long)n);
    return is_good;
}

static void check_attention_sink(golden_run *run, golden_file *file, const json_t *report)
{
    for (int i = 0; golden_has(file, golden_format(run, "%d.q", i)); i++) {
        const m2_tensor q = golden_ops_entry(run, file, i, "q", M2_BF16);
        const m2_tensor k = golden_ops_entry(run, file, i, "k", M2_BF16);
        const m2_tensor v = golden_ops_entry(run, file, i, "v", M2_BF16);
        const m2_tensor sinks = golden_ops_entry(run, file, i, "sink", M2_F32);
        const m2_tensor segments = golden_ops_entry(run, file, i, "cu_seqlens", M2_I64);
        if (!are_segments(run, &segments, q.shape[0])) continue;
        m2_tensor y = golden_ops_make(run, M2_BF16, 3, q.shape);
        golden_host_ops(run)->attention(
            golden_host_ops(run),
            &(m2_attention_args){ .q = &q,
                                  .k = &k,
                                  .v = &v,
                                  .sinks = &sinks,
                                  .segments = segments.data,
                                  .n_segments = (int)segments.shape[0] - 1,
                                  .scale = (float)(1 / sqrt((double)q.shape[2])),
                                  .y = &y });
        golden_ops_judge(run, file, report, "attention", i, &y, "out", "truth",
                         "exact, rounded twice");
        golden_ops_judge(run, file, report, "attention", i, &y, "out.flash", "truth",
                         "torch flash kernel");
    }
}

static void check_mhc_case(golden_run *run, golden_file *file, const json_t *report, int i)
{
    const m2_ops *ops = golden_host_ops(run);
    const m2_tensor s = golden_ops_entry(run, file, i, "x", M2_BF16),
                    o = golden_ops_entry(run, file, i, "sub", M2_BF16);
    const m2_tensor phi = golden_ops_entry(run, file, i, "phi", M2_F32);
    const m2_tensor norm = golden_ops_entry(run, file, i, "norm_weight", M2_F32);
    const m2_tensor alpha = golden_ops_entry(run, file, i, "alpha", M2_F32);
    const m2_tensor bias_pre = golden_ops_entry(run, file, i, "bias_pre", M2_F32);
    const m2_tensor bias_post = golden_ops_entry(run, file, i, "bias_post", M2_F32);
    const m2_tensor bias_res = golden_ops_entry(run, file, i, "bias_res", M2_F32);
    const int64_t n = s.shape[0], dim = s.shape[2];
    m2_tensor phi_out = MAKE(run, M2_F32, n, 24), pre_f32 = MAKE(run, M2_F32, n, 4);
    m2_tensor res_f32 = MAKE(run, M2_F32, n, 4, 4), pre = MAKE(run, M2_BF16, n, 4);
    m2_tensor post = MAKE(run, M2_BF16, n, 4), res = MAKE(run, M2_BF16, n, 4, 4);
    m2_tensor x = MAKE(run, M2_BF16, n, dim), mixed = MAKE(run, M2_BF16, n, 4, dim);
    const m2_tensor alpha_pre = m2_tensor_rows(&alpha, 0, 1);
    const m2_tensor alpha_post = m2_tensor_rows(&alpha, 1, 2);
    const m2_tensor alpha_res = m2_tensor_rows(&alpha, 2, 3);

    ops->mhc_coefficients(ops, &(m2_mhc_coefficients_args){ .s = &s,
                                                            .norm = &norm,
                                                            .phi = &phi,
                                                            .alpha_pre = &alpha_pre,
                                                            .alpha_post = &alpha_post,
                                                            .alpha_res = &alpha_res,
                                                            .bias_pre = &bias_pre,
                                                            .bias_post = &bias_post,
                                                            .bias_res = &bias_res,
                                                            .eps = EPS,
                                                            .h_pre = &pre,
                                                            .h_post = &post,
                                                            .h_res = &res,
                                                            .phi_out = &phi_out,
                                                            .h_pre_f32 = &pre_f32,
                                                            .h_res_f32 = &res_f32 });
    ops->mhc_read(ops, &(m2_mhc_read_args){ .s = &s, .h_pre = &pre, .x = &x });
    ops->mhc_write(ops, &(m2_mhc_write_args){
                            .s = &s, .h_res = &res, .h_post = &post, .o = &o, .s_out = &mixed });
    golden_ops_judge(run, file, report, "mhc", i, &phi_out, "out.phi_out", "truth.phi_out",
                     "phi_out");
    golden_ops_judge(run, file, report, "mhc", i, &pre_f32, "out.h_pre_f32", "truth.h_pre_f32",
                     "h_pre_f32");
    golden_ops_judge(run, file, report, "mhc", i, &x, "out.branch_in", "truth.branch_in",
                     "branch_in");
    golden_ops_judge(run, file, report, "mhc", i, &post, "out.h_post", "truth.h_post", "h_post");
    golden_ops_judge(run, file, report, "mhc", i, &res, "out.h_res", "truth.h_res", "h_res");
    golden_ops_judge(run, file, report, "mhc", i, &res_f32, "out.h_res_f32", "truth.h_res_f32",
                     "h_res_f32");
    golden_ops_judge(run, file, report, "mhc", i, &mixed, "out.mixed", "truth.mixed", "mixed");
}

static void check_mhc(golden_run *run, golden_file *file, const json_t *report)
{
    for (int i = 0; golden_has(file, golden_format(run, "%d.x", i)); i++)
        check_mhc_case(run, file, report, i);
}

/* ---- norms, rotary embedding, time ---------------------------------------------------------- */

static void check_rmsnorm(golden_run *run, golden_file *file, const json_t *report)
{
    for (int64_t i = 0; i < golden_n_entries(file); i++) {
        const char *name = golden_entry(file, i)->name, *end = strrchr(name, '.');
        if (!end || strcmp(end, ".in") != 0) continue;
        const char *key = golden_format(run, "%.*s", (int)(end - name), name);
        const m2_ckpt_tensor *out = golden_take(file, golden_format(run, "%s.out", key));
        const m2_tensor x = golden_tensor(file, name, golden_entry(file, i)->dtype);
        const m2_tensor w = golden_tensor(file, golden_format(run, "%s.weight", key), M2_F32);
        if (!out || !w.data) continue;
        m2_groups storage;
        const m2_groups *groups = NULL;
        if (golden_has(file, golden_format(run, "%s.sizes", key))) {
            const m2_tensor sizes =
                golden_tensor(file, golden_format(run, "%s.sizes", key), M2_I32);
            /* Rows of heads come one after the other; sizes count tokens. */
            groups = golden_ops_groups(run, &sizes, x.shape[0], &storage);
            if (!groups) continue;
        }
        m2_tensor y = golden_ops_make(run, out->dtype, x.n_dims, x.shape);
        golden_host_ops(run)->rms_norm(
            golden_host_ops(run),
            &(m2_rms_norm_args){
                .x = &x, .w = &w, .groups = groups, .eps = EPS, .weight_offset = 1, .y = &y });
        const char *out_name = golden_format(run, "%s.out", key);
        const char *truth_name = golden_format(run, "%s.truth", key);
        golden_judge(file, key, &y, out_name, truth_name, 2);
        recorded_errors_check(run, report, file, "rmsnorm", key, out_name, truth_name);
    }
}

/* Rotate the first 2 * n_rot dims of every head in f64. */
static double *rotate_in_f64(golden_run *run, const m2_tensor *q, m2_dtype rounding,
                             const m2_tensor *table)
{
    const int64_t n = q->shape[0], H = q->shape[1], d = q->shape[2], n_rot = table->shape[1] / 2;
    double *y = golden_alloc(run, (size_t)(n * H * d) * sizeof *y);
    for (int64_t row = 0; row < n * H; row++) {
        const float *from = (const float *)q->data + row * d;
        const float *sines = (const float *)table->data + row / H * 2 * n_rot;
        for (int64_t i = 0; i < d; i++) {
            const int64_t pair = i < n_rot ? i + n_rot : i < 2 * n_rot ? i - n_rot : i;
            float a = from[i], b = from[pair];
            if (rounding == M2_BF16) a = m2_round_bf16(a), b = m2_round_bf16(b);
            double value = a;
            if (i < n_rot) value = (double)a * sines[n_rot + i] - (double)b * sines[i];
            if (i >= n_rot && i < 2 * n_rot)
                value = (double)a * sines[i] + (double)b * sines[i - n_rot];
            y[row * d + i] = rounding == M2_BF16 ? (double)m2_round_bf16((float)value) : value;
        }
    }
    return y;
}

/* The operator norms before it turns and rounds to bf16.  So its queries are scaled back by their
 * RMS here and judged against what bf16 in and out must cost. */
static void check_rotation(golden_run *run, golden_file *file, const json_t *report, int i,
                           const m2_tensor *table)
{
    const m2_tensor q = golden_ops_entry(run, file, i, "q", M2_F32);
    const m2_tensor recorded = golden_ops_entry(run, file, i, "q_rot", M2_F32);
    const m2_tensor truth = golden_ops_entry(run, file, i, "q_rot.truth", M2_F32);
    const m2_tensor angles = golden_ops_entry(run, file, i, "emb.truth", M2_F32);
    if (!q.data || !recorded.data || !truth.data || !angles.data) return;
    const int64_t n = q.shape[0], H = q.shape[1], d = q.shape[2], count = n * H * d;

    /* Query heads, and as many key and value heads, all the same. */
    m2_tensor qkv = MAKE(run, M2_BF16, n, 3 * H * d), weight = MAKE(run, M2_F32, d);
    m2_tensor out[3], seq = MAKE(run, M2_I32, n);
    for (int part = 0; part < 3; part++) out[part] = MAKE(run, M2_BF16, n, H, d);
    for (int64_t r = 0; r < n; r++) {
        ((int32_t *)seq.data)[r] = (int32_t)r;
        for (int part = 0; part < 3; part++)
            m2_convert((const float *)q.data + r * H * d, M2_F32,
                       (m2_bf16 *)qkv.data + (r * 3 + part) * H * d, M2_BF16, H * d);
    }
    golden_host_ops(run)->qk_norm_rope(golden_host_ops(run),
                                       &(m2_qk_norm_rope_args){ .qkv = &qkv,
                                                                .q_norm = &weight,
                                                                .k_norm = &weight,
                                                                .rope = table,
                                                                .seq = &seq,
                                                                .eps = EPS,
                                                                .q = &out[0],
                                                                .k = &out[1],
                                                                .v = &out[2] });

    const double *baseline = rotate_in_f64(run, &q, M2_BF16, &angles);
    const double bf16_error = golden_relative_error(baseline, M2_F64, truth.data, M2_F32, count);
    double *ours = golden_alloc(run, (size_t)count * sizeof *ours);
    for (int part = 0; part < 2; part++) {
        for (int64_t row = 0; row < n * H; row++) {
            double squares = 0;
            for (int64_t j = 0; j < d; j++) {
                const double x = (double)m2_round_bf16(((const float *)q.data)[row * d + j]);
                squares += x * x;
            }
            const double rms = sqrt(squares / (double)d + (double)EPS);
            for (int64_t j = 0; j < d; j++)
                ours[row * d + j] =
                    rms * (double)m2_bf16_to_f32(((const m2_bf16 *)out[part].data)[row * d + j]);
        }
        golden_judge_values(run, golden_format(run, "rope %d %s_rot", i, part ? "k" : "q"), ours,
                            M2_F64, bf16_error, truth.data, M2_F32, count, 2, GOLDEN_FLOOR_BF16);
    }
    recorded_errors_check(run, report, file, golden_format(run, "rope/%d", i), "rotated q",
                          golden_format(run, "%d.q_rot", i),
                          golden_format(run, "%d.q_rot.truth", i));
    /* The recorded rotation is that of the formula. */
    golden_judge_values(run, golden_format(run, "rope %d formula", i),
                        rotate_in_f64(run, &q, M2_F32, &angles), M2_F64,
                        golden_relative_error(recorded.data, M2_F32, truth.data, M2_F32, count),
                        truth.data, M2_F32, count, 2, GOLDEN_FLOOR_F32);
}

static void check_rope_time(golden_run *run, golden_file *file, const json_t *report)
{
    const m2_ops *ops = golden_host_ops(run);
    for (int i = 0; golden_has(file, golden_format(run, "%d.coords", i)); i++) {
        const m2_tensor coords = golden_ops_entry(run, file, i, "coords", M2_F32);
        const m2_tensor bands = golden_ops_entry(run, file, i, "bands", M2_F32);
        m2_tensor table = MAKE(run, M2_F32, coords.shape[0], 6 * bands.shape[0]);
        ops->rope_table(
            ops, &(m2_rope_table_args){ .coords = &coords, .bands = &bands, .table = &table });
        golden_ops_judge(run, file, report, "rope", i, &table, "emb", "emb.truth", "emb");
        check_rotation(run, file, report, i, &table);
    }
    const m2_tensor step = golden_tensor(file, "time.step", M2_I32);
    const m2_tensor tau = golden_tensor(file, "time.position", M2_F32);
    const m2_ckpt_tensor *wanted = golden_take(file, "time.emb");
    if (!step.data || !tau.data || !wanted) return;
    int n_other = 0;
    for (int64_t i = 0; i < step.shape[0]; i++)
        n_other += (float)((const int32_t *)step.data)[i] / 1000.0f != ((const float *)tau.data)[i];
    golden_result(run, n_other == 0, "time position", "%d positions are not step / 1000", n_other);
    m2_tensor x = golden_ops_make(run, M2_F32, wanted->n_dims, wanted->shape);
    ops->time_channels(
        ops, &(m2_time_channels_args){ .tau = &tau, .n_channels = (int)wanted->shape[1], .x = &x });
    golden_judge(file, "time.emb", &x, "time.emb", "time.emb.truth", 2);
    recorded_errors_check(run, report, file, "time",
                          golden_format(run, "dim %d", (int)wanted->shape[1]), "time.emb",
                          "time.emb.truth");
}

static void check_swiglu7(golden_run *run, golden_file *file, const json_t *report)
{
    static const struct {
        const char *name;
        m2_dtype dtype;
    } types[] = { { "bf16", M2_BF16 }, { "f32", M2_F32 } };
    for (int i = 0; golden_has(file, golden_format(run, "%d.bf16.in", i)); i++) {
        for (int t = 0; t < 2; t++) {
            const char *type = types[t].name;
            const m2_tensor x =
                golden_ops_entry(run, file, i, golden_format(run, "%s.in", type), types[t].dtype);
            if (!x.data) continue;
            m2_tensor y = MAKE(run, types[t].dtype, x.shape[0], x.shape[1] / 2);
            golden_host_ops(run)->swiglu7(golden_host_ops(run),
                                          &(m2_swiglu7_args){ .x = &x, .y = &y });
            golden_ops_judge(run, file, report, "swiglu7", i, &y,
                             golden_format(run, "%s.out", type),
                             golden_format(run, "%s.truth", type), type);
        }
    }
}

static const struct {
    const char *file;
    void (*check)(golden_run *run, golden_file *file, const json_t *report);
} operations[] = {
    { "attention_sink.safetensors", check_attention_sink },
    { "mhc.safetensors", check_mhc },
    { "moe.safetensors", golden_ops_moe },
    { "moe_layer.safetensors", golden_ops_moe_layer },
    { "rmsnorm.safetensors", check_rmsnorm },
    { "rope_time.safetensors", check_rope_time },
    { "router.safetensors", golden_ops_router },
    { "swiglu7.safetensors", check_swiglu7 },
};

void golden_check_ops(golden_run *run, const char *dir)
{
    json_t *report = recorded_errors_load(run, dir);
    for (char **name = golden_list(run, dir, 0); *name; name++) {
        const char *path = golden_format(run, "%s/%s", dir, *name);
        if (strcmp(*name, "report.json") == 0) continue; /* errors of the run that made the data */
        size_t i = 0;
        const size_t n = sizeof operations / sizeof operations[0];
        while (i < n && strcmp(*name, operations[i].file) != 0) i++;
        if (i == n) {
            golden_result(run, 0, path, "not understood: no operation of this name");
            continue;
        }
        golden_file *file = golden_open(run, path);
        if (!file) continue;
        operations[i].check(run, file, report);
        golden_close(file);
    }
    for (char **name = golden_list(run, dir, 1); *name; name++)
        golden_result(run, 0, golden_format(run, "%s/%s", dir, *name), "not understood");
    json_decref(report);
}
