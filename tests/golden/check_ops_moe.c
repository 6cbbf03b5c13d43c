/* check_ops_moe.c - routing, experts, and one mixture-of-experts half layer. */
#include "check_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- experts ------------------------------------------------------------------------------- */

typedef struct dispatched {
    m2_tensor gather_ids, probs_sorted, expert_offsets, route_pos;
} dispatched;

static m2_tensor run_experts(golden_run *run, const m2_tensor *x, const m2_tensor *topk_idx,
                             const m2_tensor *topk_prob, const m2_tensor *w_gate,
                             const m2_tensor *w_up, const m2_tensor *w_down, dispatched *to)
{
    const m2_ops *ops = golden_host_ops(run);
    const int64_t n_routes = m2_tensor_count(topk_idx), n_rows = w_gate->shape[0];
    to->gather_ids = MAKE(run, M2_I32, n_routes);
    to->probs_sorted = MAKE(run, M2_F32, n_routes);
    to->expert_offsets = MAKE(run, M2_I32, n_rows + 1);
    to->route_pos = golden_ops_make(run, M2_I32, 3, topk_idx->shape);
    ops->moe_dispatch(ops, &(m2_moe_dispatch_args){ .topk_idx = topk_idx,
                                                    .topk_prob = topk_prob,
                                                    .n_experts = (int)(n_rows / topk_idx->shape[0]),
                                                    .gather_ids = &to->gather_ids,
                                                    .probs_sorted = &to->probs_sorted,
                                                    .expert_offsets = &to->expert_offsets,
                                                    .route_pos = &to->route_pos });
    m2_tensor routes = MAKE(run, M2_BF16, n_routes, x->shape[2]);
    m2_tensor y = golden_ops_make(run, M2_BF16, 3, x->shape);
    ops->moe_ffn(ops, &(m2_moe_ffn_args){ .x = x,
                                          .gather_ids = &to->gather_ids,
                                          .probs_sorted = &to->probs_sorted,
                                          .expert_offsets = &to->expert_offsets,
                                          .route_pos = &to->route_pos,
                                          .w_gate = w_gate,
                                          .w_up = w_up,
                                          .w_down = w_down,
                                          .routes = &routes,
                                          .y = &y });
    return y;
}

static void exact(golden_run *run, golden_file *file, int i, const char *name,
                  const m2_tensor *ours)
{
    const m2_tensor expected = golden_ops_entry(run, file, i, name, ours->dtype);
    if (!expected.data) return;
    if (m2_tensor_count(&expected) != m2_tensor_count(ours)) {
        golden_result(run, 0, golden_format(run, "moe %d %s", i, name),
                      "%lld values, %lld expected", (long long)m2_tensor_count(ours),
                      (long long)m2_tensor_count(&expected));
        return;
    }
    golden_exact(run, golden_format(run, "moe %d %s", i, name), ours->data, expected.data,
                 m2_tensor_bytes(ours));
}

void golden_ops_moe(golden_run *run, golden_file *file, const json_t *report)
{
    for (int i = 0; golden_has(file, golden_format(run, "%d.x", i)); i++) {
        const m2_tensor x = golden_ops_entry(run, file, i, "x", M2_BF16);
        const m2_tensor idx = golden_ops_entry(run, file, i, "topk_idx", M2_I32);
        const m2_tensor prob = golden_ops_entry(run, file, i, "topk_prob", M2_F32);
        const m2_tensor w_gate = golden_ops_entry(run, file, i, "W_gate", M2_BF16);
        const m2_tensor w_up = golden_ops_entry(run, file, i, "W_up", M2_BF16);
        const m2_tensor w_down = golden_ops_entry(run, file, i, "W_down", M2_BF16);
        dispatched sorted;
        const m2_tensor y = run_experts(run, &x, &idx, &prob, &w_gate, &w_up, &w_down, &sorted);
        exact(run, file, i, "gather_ids", &sorted.gather_ids);
        exact(run, file, i, "probs_sorted", &sorted.probs_sorted);
        exact(run, file, i, "expert_offsets", &sorted.expert_offsets);
        golden_ops_judge(run, file, report, "moe", i, &y, "out.det", "truth", "det");
        if (golden_has(file, golden_format(run, "%d.out.atomic", i)))
            golden_ops_judge(run, file, report, "moe", i, &y, "out.atomic", "truth", "atomic");
    }
}

/* ---- one MoE half layer -------------------------------------------------------------------- */

static m2_tensor linear(golden_run *run, const m2_tensor *x, const m2_tensor *w,
                        const m2_groups *groups)
{
    m2_tensor y = MAKE(run, M2_BF16, x->shape[0], w->shape[0] / (groups ? groups->n_groups : 1));
    golden_host_ops(run)->linear(golden_host_ops(run),
                                 &(m2_linear_args){ .x = x, .w = w, .groups = groups, .y = &y });
    return y;
}

/* fc2 . swiglu7(fc1 . x) */
static m2_tensor shared_expert(golden_run *run, const m2_tensor *x, const m2_tensor *fc1,
                               const m2_tensor *fc2, const m2_groups *groups)
{
    const m2_tensor up = linear(run, x, fc1, groups);
    m2_tensor hidden = MAKE(run, M2_BF16, up.shape[0], up.shape[1] / 2);
    golden_host_ops(run)->swiglu7(golden_host_ops(run),
                                  &(m2_swiglu7_args){ .x = &up, .y = &hidden });
    return linear(run, &hidden, fc2, groups);
}

static int compare_ids(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* Rows of [..., top_k] that hold other sets. */
static int64_t count_other_sets(golden_run *run, const m2_tensor *a, const m2_tensor *b)
{
    const int64_t top_k = a->shape[2], n = m2_tensor_count(a) / top_k;
    int32_t *x = golden_alloc(run, (size_t)top_k * 4), *y = golden_alloc(run, (size_t)top_k * 4);
    int64_t n_other = 0;
    for (int64_t r = 0; r < n; r++) {
        memcpy(x, (const int32_t *)a->data + r * top_k, (size_t)top_k * 4);
        memcpy(y, (const int32_t *)b->data + r * top_k, (size_t)top_k * 4);
        qsort(x, (size_t)top_k, 4, compare_ids);
        qsort(y, (size_t)top_k, 4, compare_ids);
        n_other += memcmp(x, y, (size_t)top_k * 4) != 0;
    }
    return n_other;
}

/* Probabilities by expert, zero where not chosen: independent of the order of choice. */
static double *spread(golden_run *run, const m2_tensor *idx, const m2_tensor *prob, int64_t E)
{
    const int64_t top_k = idx->shape[2], n = m2_tensor_count(idx) / top_k;
    double *by_expert = golden_alloc(run, (size_t)(n * E) * sizeof *by_expert);
    for (int64_t r = 0; r < n * top_k; r++) {
        const int32_t id = ((const int32_t *)idx->data)[r];
        if (id >= 0 && id < E) by_expert[r / top_k * E + id] = ((const float *)prob->data)[r];
    }
    return by_expert;
}

/* Rows of weights that do not sum to the route scale. */
static int64_t count_other_sums(const m2_tensor *prob, double route_scale)
{
    const int64_t top_k = prob->shape[2];
    int64_t n_other = 0;
    for (int64_t row = 0; row < m2_tensor_count(prob); row += top_k) {
        double sum = 0;
        for (int64_t k = 0; k < top_k; k++) sum += (double)((const float *)prob->data)[row + k];
        n_other += !(fabs(sum - route_scale) <= 1e-5 * route_scale);
    }
    return n_other;
}

static double route_scale_of(golden_file *file)
{
    const char *text = golden_metadata(file, "arch_config");
    json_t *arch = text ? json_loads(text, 0, NULL) : NULL;
    const double scale =
        json_number_value(json_object_get(json_object_get(arch, "moe_config"), "route_scale"));
    json_decref(arch);
    return scale;
}

/* x . w^T of the normed input in f64: what x_heads is judged against. */
static double *split_in_f64(golden_run *run, const m2_tensor *in, const m2_tensor *norm,
                            const m2_groups *groups, const m2_tensor *w)
{
    const int64_t n = in->shape[0], dim = in->shape[1], n_out = w->shape[0];
    double *y = golden_alloc(run, (size_t)(n * n_out) * sizeof *y);
    double *x = golden_alloc(run, (size_t)dim * sizeof *x);
    for (int64_t r = 0, g = 0; r < n; r++) {
        while (r >= groups->begin[g + 1]) g++;
        double squares = 0;
        m2_convert((const m2_bf16 *)in->data + r * dim, M2_BF16, x, M2_F64, dim);
        for (int64_t i = 0; i < dim; i++) squares += x[i] * x[i];
        for (int64_t i = 0; i < dim; i++)
            x[i] *= (((const float *)norm->data)[g * dim + i] + 1.0) /
                    sqrt(squares / (double)dim + 1e-6);
        for (int64_t j = 0; j < n_out; j++)
            for (int64_t i = 0; i < dim; i++)
                y[r * n_out + j] +=
                    x[i] * (double)m2_bf16_to_f32(((const m2_bf16 *)w->data)[j * dim + i]);
    }
    return y;
}

static void check_moe_choice(golden_run *run, golden_file *file, const m2_tensor *idx,
                             const m2_tensor *prob, int64_t E)
{
    const m2_tensor ref_idx = golden_tensor(file, "topk_idx", M2_I32);
    const m2_tensor ref_prob = golden_tensor(file, "topk_prob", M2_F32);
    const m2_tensor true_idx = golden_tensor(file, "topk_idx.truth", M2_I32);
    const m2_tensor true_prob = golden_tensor(file, "topk_prob.truth", M2_F32);
    if (!ref_idx.data || !ref_prob.data || !true_idx.data || !true_prob.data) return;
    const int64_t n_ref = count_other_sets(run, idx, &ref_idx);
    const int64_t n_true = count_other_sets(run, idx, &true_idx);
    golden_result(run, n_ref == 0 && n_true == 0, "moe_layer choice",
                  "%lld sets differ from the reference's, %lld from the truth's", (long long)n_ref,
                  (long long)n_true);
    const int64_t n_sums = count_other_sums(&ref_prob, route_scale_of(file)) +
                           count_other_sums(&true_prob, route_scale_of(file));
    if (n_sums > 0)
        golden_result(run, 0, "moe_layer topk_prob",
                      "%lld recorded rows do not sum to the route scale", (long long)n_sums);
    const int64_t n = m2_tensor_count(idx) / idx->shape[2] * E;
    const double *truth = spread(run, &true_idx, &true_prob, E);
    const double reference_error =
        golden_relative_error(spread(run, &ref_idx, &ref_prob, E), M2_F64, truth, M2_F64, n);
    golden_judge_values(run, "moe_layer topk_prob", spread(run, idx, prob, E), M2_F64,
                        reference_error, truth, M2_F64, n, 2, GOLDEN_FLOOR_BF16);
}

void golden_ops_moe_layer(golden_run *run, golden_file *file, const json_t *report)
{
    const m2_ops *ops = golden_host_ops(run);
    const m2_tensor in = golden_tensor(file, "in", M2_BF16);
    const m2_tensor sizes = golden_tensor(file, "sizes", M2_I32);
    const m2_tensor norm = golden_tensor(file, "w.pre_norm.weight", M2_F32);
    const m2_tensor split = golden_tensor(file, "w.split_linear.weight", M2_BF16);
    const m2_tensor merge = golden_tensor(file, "w.merge_linear.weight", M2_BF16);
    const m2_tensor gate = golden_tensor(file, "w.moe_mlp.gate", M2_F32);
    const m2_tensor w_gate = golden_tensor(file, "w.moe_mlp.W_gate", M2_BF16);
    const m2_tensor w_up = golden_tensor(file, "w.moe_mlp.W_up", M2_BF16);
    const m2_tensor w_down = golden_tensor(file, "w.moe_mlp.W_down", M2_BF16);
    const m2_tensor bias = golden_tensor(file, "w.moe_mlp.router.expert_bias", M2_F32);
    /* The loader puts this one in its place; this layer was made without the loader. */
    golden_ignore(file, "w.moe_mlp.router.expert_bias_ema");
    const m2_tensor fc1 = golden_tensor(file, "w.shared_expert_fc1.weight", M2_BF16);
    const m2_tensor fc2 = golden_tensor(file, "w.shared_expert_fc2.weight", M2_BF16);
    const m2_tensor mod1 =
        golden_tensor(file, "w.modality_specific_shared_expert_fc1.weight", M2_BF16);
    const m2_tensor mod2 =
        golden_tensor(file, "w.modality_specific_shared_expert_fc2.weight", M2_BF16);
    const m2_tensor recorded_heads = golden_tensor(file, "x_heads", M2_BF16);
    const m2_ckpt_tensor *wanted_idx = golden_take(file, "topk_idx");
    if (!in.data || !sizes.data || !w_gate.data || !recorded_heads.data || !wanted_idx) return;
    m2_groups storage;
    const m2_groups *groups = golden_ops_groups(run, &sizes, in.shape[0], &storage);
    if (!groups) return;
    const int64_t n = in.shape[0], Hm = wanted_idx->shape[0], E = gate.shape[0] / Hm;

    m2_tensor normed = golden_ops_make(run, M2_BF16, 2, in.shape),
              out = golden_ops_make(run, M2_BF16, 2, in.shape);
    ops->rms_norm(
        ops,
        &(m2_rms_norm_args){
            .x = &in, .w = &norm, .groups = groups, .eps = EPS, .weight_offset = 1, .y = &normed });
    m2_tensor x = linear(run, &normed, &split, NULL);
    const double *exact_heads = split_in_f64(run, &in, &norm, groups, &split);
    golden_judge_values(run, "moe_layer x_heads", x.data, M2_BF16,
                        golden_relative_error(recorded_heads.data, M2_BF16, exact_heads, M2_F64,
                                              m2_tensor_count(&x)),
                        exact_heads, M2_F64, m2_tensor_count(&x), 2, GOLDEN_FLOOR_BF16);

    int64_t n_off = 0;
    for (int64_t i = 0; i < m2_tensor_count(&x); i++) {
        const double value = (double)m2_bf16_to_f32(((const m2_bf16 *)recorded_heads.data)[i]);
        n_off += !(fabs(value - exact_heads[i]) <= 0x1p-5 * (1 + fabs(exact_heads[i])));
    }
    if (n_off > 0)
        golden_result(run, 0, "moe_layer x_heads", "%lld recorded values are not the projection's",
                      (long long)n_off);

    const m2_tensor heads = m2_tensor_over(x.data, M2_BF16, n, Hm, x.shape[1] / Hm);
    m2_tensor logits = MAKE(run, M2_F32, Hm, n, E);
    m2_tensor idx = MAKE(run, M2_I32, Hm, n, wanted_idx->shape[2]);
    m2_tensor prob = MAKE(run, M2_F32, Hm, n, wanted_idx->shape[2]);
    ops->moe_logits(ops, &(m2_moe_logits_args){ .x = &heads, .gate = &gate, .logits = &logits });
    ops->moe_select(ops, &(m2_moe_select_args){ .logits = &logits,
                                                .bias = &bias,
                                                .route_scale = (float)route_scale_of(file),
                                                .topk_idx = &idx,
                                                .topk_prob = &prob });
    check_moe_choice(run, file, &idx, &prob, E);

    dispatched sorted;
    const m2_tensor routed =
        run_experts(run, &heads, &idx, &prob, &w_gate, &w_up, &w_down, &sorted);
    const m2_tensor flat = m2_tensor_over(routed.data, M2_BF16, n, x.shape[1]);
    const m2_tensor merged = linear(run, &flat, &merge, NULL);
    const m2_tensor x1 = shared_expert(run, &normed, &fc1, &fc2, NULL);
    const m2_tensor x2 = shared_expert(run, &normed, &mod1, &mod2, groups);
    ops->add(ops, &(m2_add_args){ .a = &x1, .b = &x2, .c = &merged, .y = &out });
    golden_judge(file, "out", &out, "out", "truth", 2);
    recorded_errors_check(run, report, file, "moe_layer", "out", "out", "truth");
}

/* ---- router ---------------------------------------------------------------------------------- */

static double key_of(const m2_tensor *logits, const m2_tensor *bias, int64_t row, int32_t id)
{
    const int64_t n_tokens = logits->shape[1], E = logits->shape[2];
    if (id < 0 || id >= E) return NAN;
    const double z = (double)((const float *)logits->data)[row * E + id];
    const double b = bias ? (double)((const float *)bias->data)[row / n_tokens * E + id] : 0;
    return 1 / (1 + exp(-z)) + b;
}

/* Keys this near may change places: a sigmoid in f32 cannot tell them apart. */
#define KEY_TIE 2e-7

/* Place by place, the same expert or one with the same key. */
static int64_t count_other_places(const m2_tensor *logits, const m2_tensor *bias,
                                  const m2_tensor *ours, const m2_tensor *theirs)
{
    const int64_t top_k = ours->shape[2];
    int64_t n_other = 0;
    for (int64_t i = 0; i < m2_tensor_count(ours); i++) {
        const int32_t a = ((const int32_t *)ours->data)[i], b = ((const int32_t *)theirs->data)[i];
        if (a == b) continue;
        const double gap = key_of(logits, bias, i / top_k, a) - key_of(logits, bias, i / top_k, b);
        n_other += !(fabs(gap) <= KEY_TIE);
    }
    return n_other;
}

/* What a weight should be: the score of its expert over the sum of the chosen scores. */
static double weight_of(const m2_tensor *logits, const m2_tensor *idx, int64_t at,
                        double *score_out)
{
    const int64_t top_k = idx->shape[2], row = at / top_k;
    const int32_t *ids = idx->data;
    double sum = 0;
    for (int64_t k = 0; k < top_k; k++) sum += key_of(logits, NULL, row, ids[row * top_k + k]);
    *score_out = key_of(logits, NULL, row, ids[at]);
    return *score_out / fmax(sum, 1e-12);
}

#define WEIGHT_OFF_MAX 1e-6 /* f32 of values up to 1 */

/* Recorded weights in f64; some cases record plain scores, which are normalised here.  Values that
 * are neither are counted. */
static double *normalised(golden_run *run, const m2_tensor *logits, const m2_tensor *idx,
                          const m2_tensor *prob, int64_t *n_other)
{
    const int64_t n = m2_tensor_count(prob);
    double *values = golden_alloc(run, (size_t)n * sizeof *values);
    m2_convert(prob->data, M2_F32, values, M2_F64, n);
    for (int64_t i = 0; i < n; i++) {
        double score;
        const double weight = weight_of(logits, idx, i, &score);
        if (fabs(values[i] - weight) <= WEIGHT_OFF_MAX) continue;
        if (fabs(values[i] - score) <= WEIGHT_OFF_MAX)
            values[i] *= weight / score;
        else
            ++*n_other;
    }
    return values;
}

static void choose(golden_run *run, const m2_tensor *logits, const m2_tensor *bias,
                   const m2_tensor *like, m2_tensor *idx, m2_tensor *prob)
{
    *idx = golden_ops_make(run, M2_I32, 3, like->shape);
    *prob = golden_ops_make(run, M2_F32, 3, like->shape);
    golden_host_ops(run)->moe_select(
        golden_host_ops(run),
        &(m2_moe_select_args){
            .logits = logits, .bias = bias, .route_scale = 1, .topk_idx = idx, .topk_prob = prob });
}

static void check_router_case(golden_run *run, golden_file *file, int i, const m2_tensor *logits,
                              const m2_tensor *bias)
{
    const char *kind = bias ? "bias" : "nobias";
    const m2_tensor ref =
        golden_ops_entry(run, file, i, golden_format(run, "%s.idx", kind), M2_I32);
    const m2_tensor ref_prob =
        golden_ops_entry(run, file, i, golden_format(run, "%s.prob", kind), M2_F32);
    const m2_tensor truth =
        golden_ops_entry(run, file, i, golden_format(run, "%s.idx.truth", kind), M2_I32);
    const m2_tensor true_prob =
        golden_ops_entry(run, file, i, golden_format(run, "%s.prob.truth", kind), M2_F32);
    if (!ref.data || !ref_prob.data || !truth.data || !true_prob.data) return;
    m2_tensor idx, prob;
    choose(run, logits, bias, &ref, &idx, &prob);

    /* Among exactly equal keys the reference's set counts; the truth's is arbitrary. */
    const int64_t n_sets = count_other_sets(run, &idx, &ref);
    const int64_t n_ref = count_other_places(logits, bias, &idx, &ref);
    const int64_t n_true = count_other_places(logits, bias, &idx, &truth);
    golden_result(run, n_sets == 0 && n_ref == 0 && n_true == 0,
                  golden_format(run, "router %d %s choice", i, kind),
                  "%lld other sets, %lld other places, %lld against the truth", (long long)n_sets,
                  (long long)n_ref, (long long)n_true);
    int64_t n_weights = 0;
    const double *values = normalised(run, logits, &ref, &ref_prob, &n_weights);
    const double *exact_values = normalised(run, logits, &truth, &true_prob, &n_weights);
    if (n_weights > 0)
        golden_result(run, 0, golden_format(run, "router %d %s prob", i, kind),
                      "%lld recorded weights are not the scores of their experts",
                      (long long)n_weights);
    const int64_t n = m2_tensor_count(&prob);
    golden_judge_values(run, golden_format(run, "router %d %s prob", i, kind), prob.data, M2_F32,
                        golden_relative_error(values, M2_F64, exact_values, M2_F64, n),
                        exact_values, M2_F64, n, 2, GOLDEN_FLOOR_F32);
}

static void check_ties(golden_run *run, golden_file *file)
{
    const m2_tensor logits = golden_tensor(file, "ties.logits", M2_F32);
    const m2_tensor gpu = golden_tensor(file, "ties.idx.gpu", M2_I32);
    const m2_tensor cpu = golden_tensor(file, "ties.idx.cpu", M2_I32);
    const m2_tensor gpu_prob = golden_tensor(file, "ties.prob.gpu", M2_F32);
    const m2_tensor cpu_prob = golden_tensor(file, "ties.prob.cpu", M2_F32);
    if (!logits.data || !gpu.data || !cpu.data || !gpu_prob.data || !cpu_prob.data) return;
    m2_tensor idx, prob;
    choose(run, &logits, NULL, &gpu, &idx, &prob);
    const int64_t n_sets = count_other_sets(run, &idx, &gpu);
    const int64_t n_gpu = count_other_places(&logits, NULL, &idx, &gpu);
    const int64_t n_cpu = count_other_places(&logits, NULL, &idx, &cpu);
    golden_result(run, n_sets == 0 && n_gpu == 0 && n_cpu == 0, "router ties choice",
                  "%lld other sets, %lld other keys, %lld against the CPU", (long long)n_sets,
                  (long long)n_gpu, (long long)n_cpu);
    golden_judge_values(run, "router ties prob gpu", prob.data, M2_F32, 0, gpu_prob.data, M2_F32,
                        m2_tensor_count(&prob), 2, GOLDEN_FLOOR_F32);
    golden_judge_values(run, "router ties prob cpu", prob.data, M2_F32, 0, cpu_prob.data, M2_F32,
                        m2_tensor_count(&prob), 2, GOLDEN_FLOOR_F32);
}

void golden_ops_router(golden_run *run, golden_file *file, const json_t *report)
{
    (void)report; /* holds no errors of weights */
    for (int i = 0; golden_has(file, golden_format(run, "%d.logits", i)); i++) {
        const m2_tensor logits = golden_ops_entry(run, file, i, "logits", M2_F32);
        const m2_tensor bias = golden_ops_entry(run, file, i, "bias", M2_F32);
        check_router_case(run, file, i, &logits, &bias);
        check_router_case(run, file, i, &logits, NULL);
    }
    if (golden_has(file, "ties.logits")) check_ties(run, file);
}
