#include "backend/twin_ops.h"

#include <stdio.h>
#include <stdlib.h>

/* How far from the CPU a result may be.
 *
 * EXACT   the bits: copies, integers, and arithmetic whose every step the contract fixes.
 * CLOSE   f32: 3e-6 of relative RMS.  The same sums in another order are off by some 3e-7 (K in the
 *         thousands); a lost element, a wrong row, bf16 where f32 belongs are off by 1e-4 and more.
 *         bf16: the f32 value before the rounding is CLOSE, so it falls on the other side of a tie
 *         for about one value in a thousand, and then by one step; `share` and `steps` say how many
 *         and how far where values are rounded several times on their way.
 * TRUTH   bf16 roundings inside depend on the order itself: errors against the same call in f32,
 *         where nothing is rounded, are at most 1.25 times the CPU's.
 * CHOICE  experts: the same where keys are not nearly equal.
 *
 * Measured on an H200, all cases: f32 6.6e-7; one rounding 0.24% of the values by 1 step; the experts
 * 0.37% by 2.3; attention as far from the truth as the CPU. */
typedef enum limit_kind { EXACT, CLOSE, TRUTH, CHOICE } limit_kind;

#define F32_ERROR_MAX   3e-6
#define TRUTH_RATIO_MAX 1.25
#define TRUTH_FLOOR     0x1p-10 /* the error rule's */

typedef struct limits {
    limit_kind kind;
    double share, steps; /* bf16 */
    double near;         /* steps of a smaller value are those of `near` times the tensor's RMS */
} limits;

/* Values far below the others come from sums that cancel, whose error is that of their terms: of f32
 * where one rounding ends the operator, else of bf16. */
#define ONE_ROUNDING                                                                               \
    {                                                                                              \
        CLOSE, 0.005, 1, 0x1p-6                                                                    \
    }
#define MANY_ROUNDINGS                                                                             \
    {                                                                                              \
        CLOSE, 0.05, 2, 1                                                                          \
    }
/* Both factors are rounded, and one of them may be the small rest of a sum. */
#define BOTH_ROUNDED                                                                               \
    {                                                                                              \
        CLOSE, 0.05, 4, 1                                                                          \
    }
/* A large value that was rounded otherwise is turned into a small one. */
#define TURNED                                                                                     \
    {                                                                                              \
        CLOSE, 0.05, 16, 1                                                                         \
    }
/* Experts are added in bf16, and the steps of a sum on the way are those of its own size: 4 steps of
 * the result for one value in a million, by simulation. */
#define SUMMED                                                                                     \
    {                                                                                              \
        CLOSE, 0.05, 8, 1                                                                          \
    }
static const limits limits_of[M2_OP_COUNT] = {
    [M2_OP_linear] = ONE_ROUNDING,
    [M2_OP_rms_norm] = ONE_ROUNDING,
    [M2_OP_activate] = ONE_ROUNDING,
    [M2_OP_attention] = { TRUTH, 0, 0, 0.5 },
    [M2_OP_mean_rows] = ONE_ROUNDING,
    [M2_OP_rope_table] = ONE_ROUNDING,
    [M2_OP_time_channels] = ONE_ROUNDING,
    [M2_OP_mhc_coefficients] = ONE_ROUNDING,
    [M2_OP_mhc_open] = ONE_ROUNDING,
    [M2_OP_mhc_read] = ONE_ROUNDING,
    [M2_OP_mhc_write] = ONE_ROUNDING,
    [M2_OP_mhc_write_open] = ONE_ROUNDING,
    [M2_OP_qk_norm_rope] = ONE_ROUNDING,
    [M2_OP_attention_gate] = ONE_ROUNDING,
    [M2_OP_attention_gated] = { TRUTH, 0, 0, 1 },
    [M2_OP_swiglu7] = ONE_ROUNDING,
    [M2_OP_linear_swiglu7] = BOTH_ROUNDED,
    [M2_OP_linear_qk_norm_rope] = TURNED,
    [M2_OP_linear_add] = MANY_ROUNDINGS,
    [M2_OP_moe_logits] = ONE_ROUNDING,
    [M2_OP_moe_select] = { CHOICE, 0, 0, 0 },
    [M2_OP_moe_ffn] = SUMMED,
    [M2_OP_guidance_rescale] = ONE_ROUNDING,
    [M2_OP_text_rope_table] = ONE_ROUNDING,
    [M2_OP_text_qk_norm_rope] = MANY_ROUNDINGS,
    [M2_OP_text_gate] = MANY_ROUNDINGS,
    [M2_OP_silu_mul] = MANY_ROUNDINGS,
    [M2_OP_causal_conv_silu] = MANY_ROUNDINGS,
    [M2_OP_gated_delta_rule] = ONE_ROUNDING,
    [M2_OP_gated_rms_norm] = MANY_ROUNDINGS,
    [M2_OP_conv] = ONE_ROUNDING,
    [M2_OP_conv_depthwise] = ONE_ROUNDING,
    [M2_OP_conv_transpose] = ONE_ROUNDING,
    [M2_OP_rms_act] = MANY_ROUNDINGS,
    [M2_OP_denormalise] = ONE_ROUNDING,
    [M2_OP_snake] = ONE_ROUNDING,
};

/* One call while it is judged. */
typedef struct twin_call {
    m2_twin *twin;
    m2_op_idx op;
    const m2_op_info *info;
    const void *args;
    size_t bytes[M2_OP_FIELDS_MAX];
    char *before[M2_OP_FIELDS_MAX];   /* of outputs, what they held before the call */
    char *expected[M2_OP_FIELDS_MAX]; /* the CPU's results                          */
    char *got[M2_OP_FIELDS_MAX];      /* the other's first results                  */
} twin_call;

static int is_output(const m2_op_field *field)
{
    return field->use == M2_FIELD_OUT || field->use == M2_FIELD_INOUT;
}

static m2_tensor *output_of(const twin_call *call, int i)
{
    return is_output(&call->info->fields[i]) ? m2_field_get(&call->info->fields[i], call->args)
                                             : NULL;
}

static void keep(const twin_call *call, char *const *copies)
{
    for (int i = 0; i < call->info->n_fields; i++) {
        const m2_tensor *tensor = output_of(call, i);
        if (tensor) memcpy(copies[i], tensor->data, call->bytes[i]);
    }
}

static void put_back(const twin_call *call, char *const *copies)
{
    for (int i = 0; i < call->info->n_fields; i++) {
        const m2_tensor *tensor = output_of(call, i);
        if (tensor) memcpy(tensor->data, copies[i], call->bytes[i]);
    }
}

static void fail_call(const twin_call *call, const char *what)
{
    fail_msg("%s, %s: %s", call->info->name, call->twin->where, what);
}

static void run_other(const twin_call *call, const void *args)
{
    m2_twin *twin = call->twin;
    call->info->call(&twin->other, args);
    const char *fault = twin->mirror ? m2_mirror_fault(twin->mirror) : NULL;
    if (fault) fail_call(call, fault);
}

/* ---- distances ---- */

static double bf16_step(double value)
{
    int exponent;
    frexp(value, &exponent);
    return ldexp(1.0, exponent - 8);
}

static double rms(const m2_tensor *tensor)
{
    const int64_t n = m2_tensor_count(tensor);
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += value_at(tensor, i) * value_at(tensor, i);
    return n ? sqrt(squares / (double)n) : 0;
}

static void raise_to(double *largest, double value)
{
    if (!(value <= *largest)) *largest = value;
}

static void check_exact(const twin_call *call, const m2_tensor *got, const m2_tensor *expected,
                        const char *name)
{
    const size_t bytes = m2_dtype_bytes(got->dtype);
    for (int64_t i = 0; i < m2_tensor_count(got); i++)
        if (memcmp((const char *)got->data + (size_t)i * bytes,
                   (const char *)expected->data + (size_t)i * bytes, bytes) != 0)
            fail_msg("%s, %s: %s[%lld of %lld] is %.9g, not %.9g", call->info->name,
                     call->twin->where, name, (long long)i, (long long)m2_tensor_count(got),
                     value_at(got, i), value_at(expected, i));
}

static void check_f32(const twin_call *call, const m2_tensor *got, const m2_tensor *expected,
                      const char *name)
{
    const double error = m2_test_relative_error(got->data, got->dtype, expected->data,
                                                expected->dtype, m2_tensor_count(got));
    raise_to(&call->twin->seen[call->op].f32_error, error);
    if (error <= F32_ERROR_MAX) return;
    int64_t worst = 0;
    double largest = -1;
    for (int64_t i = 0; i < m2_tensor_count(got); i++) {
        const double distance = fabs(value_at(got, i) - value_at(expected, i));
        if (!(distance <= largest)) largest = distance, worst = i;
    }
    fail_msg("%s, %s: %s is off by %.2e; the worst, [%lld of %lld], is %.9g, not %.9g",
             call->info->name, call->twin->where, name, error, (long long)worst,
             (long long)m2_tensor_count(got), value_at(got, worst), value_at(expected, worst));
}

static void check_bf16(const twin_call *call, const m2_tensor *got, const m2_tensor *expected,
                       const char *name)
{
    const limits *limit = &limits_of[call->op];
    twin_seen *seen = &call->twin->seen[call->op];
    const double near_zero = rms(expected) * limit->near;
    const int64_t n = m2_tensor_count(got);
    int64_t n_off = 0;
    for (int64_t i = 0; i < n; i++) {
        const double a = value_at(got, i), b = value_at(expected, i);
        if (a == b) continue;
        n_off++;
        const double steps = fabs(a - b) / bf16_step(fmax(fmax(fabs(a), fabs(b)), near_zero));
        raise_to(&seen->steps, steps);
        if (!(steps <= limit->steps))
            fail_msg("%s, %s: %s[%lld of %lld] is %.9g, not %.9g: %.1f steps", call->info->name,
                     call->twin->where, name, (long long)i, (long long)n, a, b, steps);
    }
    const double share = n ? (double)n_off / (double)n : 0;
    if (n >= 1000) raise_to(&seen->share, share);
    /* One value that fell otherwise inside an operator moves many results of its row: of few
     * values a larger share may differ. */
    if (n_off > 3 && share > limit->share * (n < 1000 ? 4 : 1))
        fail_msg("%s, %s: %lld of %lld values of %s are not the CPU's", call->info->name,
                 call->twin->where, (long long)n_off, (long long)n, name);
}

/* The first field, up to the last_th, whose tensor begins at `data`. */
static int field_over(const twin_call *call, int last, const void *data)
{
    for (int i = 0; i < last; i++) {
        const m2_tensor *tensor = m2_field_get(&call->info->fields[i], call->args);
        if (tensor && tensor->data == data) return i;
    }
    return last;
}

static void gate_in_f32(const m2_attention_gate_args *args)
{
    const int64_t n = args->a->shape[0], heads = args->a->shape[1], dim = args->a->shape[2];
    for (int64_t i = 0; i < n * heads * dim; i++) {
        const int64_t row = i / (heads * dim), at = ((const int32_t *)args->seq->data)[row];
        const double g = value_at(args->g, i / dim);
        ((float *)args->y->data)[i] =
            (float)(value_at(args->a, at * heads * dim + i % (heads * dim)) / (1 + exp(-g)));
    }
}

/* The same call with every bf16 tensor in f32: the result before any rounding. */
static m2_tensor truth_of(const twin_call *call, m2_arena *arena, int output)
{
    _Alignas(16) char copy[M2_OP_ARGS_BYTES_MAX];
    m2_tensor *tensors = m2_new(arena, m2_tensor, M2_OP_FIELDS_MAX);
    memcpy(copy, call->args, call->info->args_bytes);
    for (int i = 0; i < call->info->n_fields; i++) {
        const m2_tensor *tensor = m2_field_get(&call->info->fields[i], call->args);
        if (!tensor || tensor->dtype != M2_BF16) continue;
        const int other = field_over(call, i, tensor->data);
        if (other < i) {
            tensors[i] = tensors[other]; /* the result between two joined operators */
        } else {
            tensors[i] = m2_tensor_new(arena, M2_F32, tensor->n_dims, tensor->shape);
            m2_convert(tensor->data, M2_BF16, tensors[i].data, M2_F32, m2_tensor_count(tensor));
        }
        m2_field_set(&call->info->fields[i], copy, &tensors[i]);
    }
    if (call->op == M2_OP_attention_gated) { /* the gate takes bf16 alone */
        const m2_attention_gated_args *args = (const void *)copy;
        call->twin->cpu.attention(&call->twin->cpu, &args->attention);
        gate_in_f32(&args->gate);
    } else {
        call->info->call(&call->twin->cpu, copy);
    }
    return tensors[output];
}

static void check_truth(const twin_call *call, const m2_tensor *got, const m2_tensor *expected,
                        int output)
{
    m2_arena arena;
    check_ok(m2_arena_create(&arena, "truth", (size_t)1 << 30));
    const int64_t n = m2_tensor_count(got);
    const m2_tensor truth = truth_of(call, &arena, output);
    const double ours = m2_test_relative_error(got->data, got->dtype, truth.data, truth.dtype, n);
    const double cpu =
        m2_test_relative_error(expected->data, expected->dtype, truth.data, truth.dtype, n);
    twin_seen *seen = &call->twin->seen[call->op];
    raise_to(&seen->truth_error, ours);
    raise_to(&seen->cpu_truth_error, cpu);
    int64_t worst = -1;
    const double near_zero = rms(&truth) * limits_of[call->op].near;
    for (int64_t i = 0; i < n && worst < 0; i++) {
        const double a = value_at(got, i), b = value_at(&truth, i);
        /* A value is rounded twice, and sums of rounded probabilities stand behind it. */
        if (!(fabs(a - b) <= 4 * bf16_step(fmax(fabs(b), near_zero)))) worst = i;
    }
    if (worst >= 0)
        fail_msg("%s, %s: [%lld of %lld] is %.9g, the truth %.9g", call->info->name,
                 call->twin->where, (long long)worst, (long long)n, value_at(got, worst),
                 value_at(&truth, worst));
    m2_arena_destroy(&arena);
    if (!(ours <= fmax(TRUTH_RATIO_MAX * cpu, TRUTH_FLOOR)))
        fail_msg("%s, %s: error %.2e, the CPU's %.2e", call->info->name, call->twin->where, ours,
                 cpu);
}

/* ---- experts ---- */

#define KEY_GAP_MIN 1e-5 /* a sigmoid in f32 is off by 1e-7 */

typedef struct expert_key {
    double key;
    int32_t id;
} expert_key;

static int compare_keys(const void *a, const void *b)
{
    const expert_key *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Keys of one row, falling. */
static void sort_keys(const m2_moe_select_args *args, int64_t row, expert_key *keys)
{
    const int64_t n = args->logits->shape[1], n_experts = args->logits->shape[2];
    for (int64_t e = 0; e < n_experts; e++) {
        keys[e].key = 1 / (1 + exp(-value_at(args->logits, row * n_experts + e)));
        if (args->bias) keys[e].key += value_at(args->bias, row / n * n_experts + e);
        keys[e].id = (int32_t)e;
    }
    qsort(keys, (size_t)n_experts, sizeof *keys, compare_keys);
}

/* Nearly equal keys that are not equal may change places, or the last of them take the place of one
 * that is left out. */
static int is_clear(const expert_key *keys, int64_t top_k, int64_t n_experts)
{
    for (int64_t k = 0; k < top_k && k + 1 < n_experts; k++) {
        const double gap = keys[k].key - keys[k + 1].key;
        if (gap != 0 && gap < KEY_GAP_MIN) return 0;
    }
    return 1;
}

static void check_choice(const twin_call *call, const char *got_idx, const char *got_prob)
{
    const m2_moe_select_args *args = call->args;
    const int64_t top_k = args->topk_idx->shape[2], n_experts = args->logits->shape[2];
    const int64_t n_rows = m2_tensor_count(args->topk_idx) / top_k;
    const int32_t *ours = (const void *)got_idx, *theirs = args->topk_idx->data;
    const float *prob = (const void *)got_prob, *expected = args->topk_prob->data;
    expert_key *keys = calloc((size_t)n_experts, sizeof *keys);
    int64_t n_clear = 0, bad = -1;
    assert_non_null(keys);
    for (int64_t row = 0; row < n_rows && bad < 0; row++) {
        if (!args->forced) {
            sort_keys(args, row, keys);
            if (!is_clear(keys, top_k, n_experts)) continue;
        }
        n_clear++;
        for (int64_t i = row * top_k; i < (row + 1) * top_k; i++)
            if (ours[i] != theirs[i] ||
                !(fabsf(prob[i] - expected[i]) <= 1e-6f * args->route_scale))
                bad = i;
    }
    free(keys);
    if (bad >= 0)
        fail_msg("%s, %s: place %lld of row %lld is expert %d with %.9g, not %d with %.9g",
                 call->info->name, call->twin->where, (long long)(bad % top_k),
                 (long long)(bad / top_k), ours[bad], (double)prob[bad], theirs[bad],
                 (double)expected[bad]);
    if (n_rows >= 20) assert_true(n_clear * 2 >= n_rows);
}

/* ---- the bits of rows ---- */

/* Views of the first n rows of everything that has rows. */
static const void *cut_rows(const twin_call *call, int64_t n, void *copy, m2_tensor *tensors,
                            m2_groups *groups)
{
    memcpy(copy, call->args, call->info->args_bytes);
    for (int i = 0; i < call->info->n_fields; i++) {
        const m2_op_field *field = &call->info->fields[i];
        const m2_tensor *tensor = m2_field_get(field, call->args);
        if (!tensor || !field->has_rows) continue;
        tensors[i] = m2_tensor_rows(tensor, 0, n);
        m2_field_set(field, copy, &tensors[i]);
    }
    const ptrdiff_t at = m2_op_groups_offset(call->op);
    const m2_groups *whole = NULL;
    if (at >= 0) memcpy(&whole, (const char *)call->args + at, sizeof whole);
    if (whole) {
        *groups = *whole;
        for (int g = 0; g <= groups->n_groups; g++)
            if (groups->begin[g] > n) groups->begin[g] = n;
        memcpy((char *)copy + at, &groups, sizeof groups);
    }
    return copy;
}

static int64_t count_rows(const twin_call *call)
{
    for (int i = 0; i < call->info->n_fields; i++) {
        const m2_tensor *tensor = m2_field_get(&call->info->fields[i], call->args);
        if (tensor && call->info->fields[i].has_rows) return tensor->shape[0];
    }
    return 0;
}

static void check_first_rows(const twin_call *call, int64_t n_kept, int64_t n, const char *what)
{
    for (int i = 0; i < call->info->n_fields; i++) {
        const m2_tensor *tensor = output_of(call, i);
        if (!tensor || !call->info->fields[i].has_rows) continue;
        if (memcmp(tensor->data, call->got[i], call->bytes[i] / (size_t)n * (size_t)n_kept) != 0)
            fail_call(call, what);
    }
}

/* f32 or bf16 NaNs in the last row of every input with rows; gives back whether there was one.
 * `kept` holds what stood there. */
static int spoil_last_row(const twin_call *call, int64_t n, char **kept)
{
    int n_spoilt = 0;
    for (int i = 0; i < call->info->n_fields; i++) {
        const m2_op_field *field = &call->info->fields[i];
        const m2_tensor *tensor = m2_field_get(field, call->args);
        kept[i] = NULL;
        if (!tensor || !field->has_rows || field->use != M2_FIELD_IN) continue;
        if (tensor->dtype != M2_F32 && tensor->dtype != M2_BF16) continue;
        const size_t bytes = m2_tensor_bytes(tensor) / (size_t)n;
        char *row = (char *)tensor->data + bytes * (size_t)(n - 1);
        kept[i] = malloc(bytes ? bytes : 1);
        memcpy(kept[i], row, bytes);
        memset(row, 0xff, bytes);
        n_spoilt++;
    }
    return n_spoilt;
}

static void mend_last_row(const twin_call *call, int64_t n, char **kept)
{
    for (int i = call->info->n_fields - 1; i >= 0; i--) {
        const m2_tensor *tensor = m2_field_get(&call->info->fields[i], call->args);
        if (!kept[i]) continue;
        const size_t bytes = m2_tensor_bytes(tensor) / (size_t)n;
        memcpy((char *)tensor->data + bytes * (size_t)(n - 1), kept[i], bytes);
        free(kept[i]);
    }
}

static void check_rows(const twin_call *call)
{
    const int64_t n = count_rows(call);
    if (n < 2) return;
    _Alignas(16) char copy[M2_OP_ARGS_BYTES_MAX];
    m2_tensor tensors[M2_OP_FIELDS_MAX];
    m2_groups groups;
    put_back(call, call->before);
    run_other(call, cut_rows(call, n / 2, copy, tensors, &groups));
    check_first_rows(call, n / 2, n, "the first half of the rows alone has other bits");
    /* An empty group of tokens, a prompt without pictures: nothing to do, and nothing that fails. */
    run_other(call, cut_rows(call, 0, copy, tensors, &groups));

    /* Products with the state meet later rows of a chunk with the factor 0. */
    if (call->op == M2_OP_gated_delta_rule) return;
    char *kept[M2_OP_FIELDS_MAX];
    put_back(call, call->before);
    if (spoil_last_row(call, n, kept)) {
        run_other(call, call->args);
        check_first_rows(call, n - 1, n, "a NaN in the last row reaches other rows");
    }
    mend_last_row(call, n, kept);
}

/* ---- one call ---- */

static const m2_mhc_open_args *open_of(const twin_call *call)
{
    if (call->op == M2_OP_mhc_open) return call->args;
    if (call->op == M2_OP_mhc_write_open)
        return &((const m2_mhc_write_open_args *)call->args)->open;
    return NULL;
}

/* The tensor with the other's results. */
static m2_tensor found(const twin_call *call, const m2_tensor *tensor)
{
    m2_tensor other = *tensor;
    for (int i = 0; i < call->info->n_fields; i++)
        if (output_of(call, i) && output_of(call, i)->data == tensor->data)
            other.data = call->got[i];
    return other;
}

/* x is read with the coefficients that were found: one that fell to the other side of a tie moves a
 * whole row. */
static void check_mhc_read(const twin_call *call, m2_tensor *expected, const m2_tensor *got)
{
    const m2_mhc_open_args *args = open_of(call);
    const m2_tensor h_pre = found(call, args->coefficients.h_pre);
    const m2_tensor s = found(call, args->coefficients.s);
    call->twin->cpu.mhc_read(&call->twin->cpu,
                             &(m2_mhc_read_args){ .s = &s, .h_pre = &h_pre, .x = expected });
    check_bf16(call, got, expected, "x");
}

/* Joined operators of ours that are to have the bits of the two: the same arithmetic in one pass. */
static void run_apart(const twin_call *call)
{
    const m2_ops *other = &call->twin->other;
    if (call->op == M2_OP_mhc_write_open) {
        const m2_mhc_write_open_args *args = call->args;
        other->mhc_write(other, &args->write);
        other->mhc_open(other, &args->open);
    } else {
        const m2_attention_gated_args *args = call->args;
        other->attention(other, &args->attention);
        other->attention_gate(other, &args->gate);
    }
}

static void check_apart(const twin_call *call)
{
    if (call->op != M2_OP_mhc_write_open && call->op != M2_OP_attention_gated) return;
    put_back(call, call->before);
    run_apart(call);
    for (int i = 0; i < call->info->n_fields; i++) {
        const m2_tensor *tensor = output_of(call, i);
        if (tensor && memcmp(tensor->data, call->got[i], call->bytes[i]) != 0)
            fail_msg("%s, %s: the two apart have other bits in %s", call->info->name,
                     call->twin->where, call->info->fields[i].name);
    }
}

static void judge(const twin_call *call)
{
    const limits *limit = &limits_of[call->op];
    if (limit->kind == CHOICE) {
        const int n = call->info->n_fields;
        check_choice(call, call->got[n - 2], call->got[n - 1]);
        return;
    }
    for (int i = 0; i < call->info->n_fields; i++) {
        const m2_tensor *expected = output_of(call, i);
        if (!expected) continue;
        m2_tensor got = *expected;
        got.data = call->got[i];
        const char *name = call->info->fields[i].name;
        if (open_of(call) && expected == open_of(call)->x)
            check_mhc_read(call, output_of(call, i), &got);
        else if (limit->kind == EXACT || (got.dtype != M2_F32 && got.dtype != M2_BF16))
            check_exact(call, &got, expected, name);
        else if (limit->kind == TRUTH && got.dtype == M2_BF16)
            check_truth(call, &got, expected, i);
        else if (got.dtype == M2_BF16)
            check_bf16(call, &got, expected, name);
        else
            check_f32(call, &got, expected, name);
    }
}

static void check_second_run(const twin_call *call)
{
    put_back(call, call->before);
    run_other(call, call->args);
    for (int i = 0; i < call->info->n_fields; i++) {
        const m2_tensor *tensor = output_of(call, i);
        if (tensor && memcmp(tensor->data, call->got[i], call->bytes[i]) != 0)
            fail_call(call, "a second run has other bits");
    }
}

static void run_and_judge(twin_call *call)
{
    m2_twin *twin = call->twin;
    twin->seen[call->op].n_calls++;
    keep(call, call->before);
    run_other(call, call->args);
    keep(call, call->got);
    if (!twin->is_quick) {
        check_second_run(call);
        check_rows(call);
        check_apart(call);
    }
    put_back(call, call->before);
    call->info->call(&twin->cpu, call->args);
    keep(call, call->expected);
    judge(call);
    put_back(call, call->expected);
}

static void twin_run(const m2_ops *ops, m2_op_idx op, const void *args)
{
    twin_call call = { .twin = ops->device, .op = op, .info = &m2_op_infos[op], .args = args };
    char **copies[] = { call.before, call.expected, call.got };
    for (int i = 0; i < call.info->n_fields; i++) {
        const m2_tensor *tensor = output_of(&call, i);
        call.bytes[i] = tensor ? m2_tensor_bytes(tensor) : 0;
        for (int k = 0; k < 3 && tensor; k++) {
            copies[k][i] = malloc(call.bytes[i] + 1);
            assert_non_null(copies[k][i]);
        }
    }
    run_and_judge(&call);
    for (int i = 0; i < call.info->n_fields; i++)
        for (int k = 0; k < 3; k++) free(copies[k][i]);
}

#define TWIN_SLOT(name)                                                                            \
    static void twin_##name(const m2_ops *ops, const m2_##name##_args *args)                       \
    {                                                                                              \
        twin_run(ops, M2_OP_##name, args);                                                         \
    }
M2_OPS(TWIN_SLOT)
#undef TWIN_SLOT

void m2_ops_init_twin(m2_ops *ops, m2_twin *twin)
{
    *ops = twin->cpu;
    ops->device = twin;
#define SET_SLOT(name) ops->name = twin_##name;
    M2_OPS(SET_SLOT)
#undef SET_SLOT
}
