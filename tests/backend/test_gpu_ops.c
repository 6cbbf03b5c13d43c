/* Every operator on the GPU against the CPU's, over random cases and the sizes of the release.
 *
 *   test_gpu_ops portable|fast|cudnn|guarded|spoiled [quick] [only PATTERN]
 *
 * `portable` runs the kernels that every vendor runs, `fast` the best of this machine, `cudnn` what
 * has attention in it, done by cuDNN where it takes the shape.  `guarded` needs no GPU: the CPU's
 * operators behind memory that the host cannot touch.  `spoiled` is the same
 * with one value of each result wrong: it passes if the test of every operator fails, and says so in
 * lines of its own.  `quick` is every case once and few tokens in the sizes of the release, every
 * tensor in an allocation of its own, for compute-sanitizer.
 */
#include "backend/draw_release.h"
#include "backend/gpu/gpu.h"
#include "backend/twin_ops.h"
#include "support/guarded_device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_CASES 48

typedef struct gpu_test {
    m2_twin twin;
    m2_ops device, ops;
    m2_gpu *gpu;
    m2_guarded *guarded;
    m2_pool *pool;
    int is_spoiled, is_cudnn;
    const char *why_not;
} gpu_test;

static gpu_test test;

static draw_and_run *const draws[M2_OP_COUNT] = {
#define DRAW(name) [M2_OP_##name] = draw_##name,
    M2_OPS(DRAW)
#undef DRAW
};

/* Catches an operator that is off in value, that leaves something unwritten or writes outside of
 * its outputs, whose bits change from run to run or with the number of rows. */
static void operator_agrees_with_the_cpu(void **state)
{
    const m2_op_idx op = (m2_op_idx)(uintptr_t)*state;
    if (test.why_not) skip();
    for (int seed = 1; seed <= N_CASES; seed++) {
        random_case c;
        m2_tensor y;
        random_case_open(&c, (uint64_t)seed);
        c.is_plain = 1; /* the CPU takes denormals for zeros, a GPU may keep them */
        m2_mirror_shift(test.twin.mirror, seed % 5 == 0);
        snprintf(test.twin.where, sizeof test.twin.where, "seed %d", seed);
        draws[op](&c, &test.ops, &y);
        random_case_close(&c);
    }
}

static const struct {
    const char *name;
    release_part *run;
    int64_t n[4];    /* tokens; 0: no more             */
    int64_t n_quick; /* of the quick case              */
} parts[] = {
    { "the release's attention", release_attention_part, { 1, 67, 200, 700 }, 67 },
    { "attention to scores far apart", release_far_scores, { 300, 700 }, 300 },
    { "the release's streams", release_streams, { 1, 33, 150, 600 }, 33 },
    { "the release's products", release_products, { 1, 40, 130, 400 }, 40 },
    { "the release's experts", release_experts, { 1, 90 }, 9 },
    { "the release's heads of experts", release_heads_of_experts, { 7, 200 }, 7 },
    { "the demo's layer", demo_layer, { 1, 50, 333 }, 50 },
    { "the release's text encoder", release_text, { 1, 70, 130 }, 70 },
    { "the release's decoders", release_decoder, { 1, 9, 50 }, 1 },
};
#define N_PARTS (sizeof parts / sizeof parts[0])

static void run_part(size_t part, int64_t n)
{
    random_case c;
    random_case_open(&c, 100 + part);
    m2_mirror_shift(test.twin.mirror, 0);
    snprintf(test.twin.where, sizeof test.twin.where, "%s, %lld tokens", parts[part].name,
             (long long)n);
    parts[part].run(&c, &test.ops, n);
    random_case_close(&c);
}

static void part_agrees_with_the_cpu(void **state)
{
    const size_t part = (size_t)(uintptr_t)*state;
    if (test.why_not) skip();
    if (test.twin.is_quick) {
        run_part(part, parts[part].n_quick);
        return;
    }
    for (int i = 0; i < 4 && parts[part].n[i] > 0; i++) run_part(part, parts[part].n[i]);
}

/* ---- bits that must not depend on the other rows ---- */

static m2_ops other(void)
{
    return test.twin.other;
}

static void check_no_fault(void)
{
    const char *fault = test.twin.mirror ? m2_mirror_fault(test.twin.mirror) : NULL;
    if (fault) fail_msg("%s", fault);
}

/* Catches tiles that start at the batch's first row and not at the segment's, a split of the keys
 * by the length of the whole. */
static void attention_of_a_segment_does_not_depend_on_the_others(void **state)
{
    (void)state;
    if (test.why_not) skip();
    static const int64_t dims[][2] = { { 128, 4 }, { 32, 2 }, { 20, 1 } };
    const m2_ops ops = other();
    for (int i = 0; i < 6; i++) {
        random_case c;
        random_case_open(&c, 40 + (uint64_t)i);
        const int64_t n = 260, first = 97, dim = dims[i % 3][0], heads = dims[i % 3][1];
        const m2_dtype act = i < 3 ? M2_BF16 : M2_F32;
        const size_t row = (size_t)(heads * dim) * m2_dtype_bytes(act);
        m2_tensor t[4], part[4];
        for (int k = 0; k < 4; k++) t[k] = random_tensor(&c, act, 1.5f, n, heads, dim);
        for (int k = 0; k < 3; k++) part[k] = m2_tensor_rows(&t[k], first, n);
        part[3] = m2_tensor_make(&c.arena, act, n - first, heads, dim);
        m2_attention_args args = { .q = &t[0],
                                   .k = &t[1],
                                   .v = &t[2],
                                   .segments = (const int64_t[]){ 0, first, n },
                                   .n_segments = 2,
                                   .scale = 0.1f,
                                   .is_causal = i & 1,
                                   .y = &t[3] };
        ops.attention(&ops, &args);
        check_no_fault();
        args = (m2_attention_args){ .q = &part[0],
                                    .k = &part[1],
                                    .v = &part[2],
                                    .segments = (const int64_t[]){ 0, n - first },
                                    .n_segments = 1,
                                    .scale = 0.1f,
                                    .is_causal = i & 1,
                                    .y = &part[3] };
        ops.attention(&ops, &args);
        check_no_fault();
        assert_memory_equal((char *)t[3].data + row * (size_t)first, part[3].data,
                            row * (size_t)(n - first));
        random_case_close(&c);
    }
}

/* Logits of the first tokens, alone and among others.  Catches a choice of tile by the number of
 * tokens. */
static void logits_of_a_token_do_not_depend_on_the_others(void **state)
{
    (void)state;
    if (test.why_not) skip();
    const m2_ops ops = other();
    static const int64_t sizes[][3] = { { 256, 256, 1 }, { 64, 16, 3 }, { 33, 7, 2 } };
    for (int i = 0; i < 3; i++) {
        random_case c;
        random_case_open(&c, 50 + (uint64_t)i);
        const int64_t n = 300, few = 5, dim = sizes[i][0], experts = sizes[i][1];
        const int64_t heads = sizes[i][2];
        m2_tensor x = random_tensor(&c, M2_BF16, 1, n, heads, dim);
        m2_tensor gate = random_tensor(&c, M2_F32, 0.2f, heads * experts, dim);
        m2_tensor all = m2_tensor_make(&c.arena, M2_F32, heads, n, experts);
        m2_tensor some = m2_tensor_make(&c.arena, M2_F32, heads, few, experts);
        const m2_tensor x_few = m2_tensor_rows(&x, 0, few);
        ops.moe_logits(&ops, &(m2_moe_logits_args){ .x = &x, .gate = &gate, .logits = &all });
        ops.moe_logits(&ops, &(m2_moe_logits_args){ .x = &x_few, .gate = &gate, .logits = &some });
        check_no_fault();
        for (int64_t h = 0; h < heads; h++)
            assert_memory_equal((float *)all.data + h * n * experts,
                                (float *)some.data + h * few * experts,
                                (size_t)(few * experts) * sizeof(float));
        random_case_close(&c);
    }
}

typedef struct routed {
    m2_tensor idx, prob, gather, sorted, offsets, pos, routes, y;
} routed;

/* Experts of the first n tokens; the choice comes from `idx` and `prob` of `n_all`. */
static routed run_experts_of(random_case *c, const m2_ops *ops, const m2_tensor *x, int64_t n,
                             const m2_tensor *idx, const m2_tensor *prob, const m2_tensor w[3])
{
    const int64_t heads = idx->shape[0], n_all = idx->shape[1], top_k = idx->shape[2];
    const int64_t dim = x->shape[2], experts = w[0].shape[0] / heads, n_routes = heads * n * top_k;
    routed r = { .idx = m2_tensor_make(&c->arena, M2_I32, heads, n, top_k),
                 .prob = m2_tensor_make(&c->arena, M2_F32, heads, n, top_k),
                 .gather = m2_tensor_make(&c->arena, M2_I32, n_routes),
                 .sorted = m2_tensor_make(&c->arena, M2_F32, n_routes),
                 .offsets = m2_tensor_make(&c->arena, M2_I32, heads * experts + 1),
                 .pos = m2_tensor_make(&c->arena, M2_I32, heads, n, top_k),
                 .routes = m2_tensor_make(&c->arena, M2_BF16, n_routes, dim),
                 .y = m2_tensor_make(&c->arena, M2_BF16, n, heads, dim) };
    const m2_tensor some = m2_tensor_rows(x, 0, n);
    for (int64_t h = 0; h < heads; h++) {
        const size_t bytes = (size_t)(n * top_k) * 4;
        memcpy((char *)r.idx.data + (size_t)h * bytes, (int32_t *)idx->data + h * n_all * top_k,
               bytes);
        memcpy((char *)r.prob.data + (size_t)h * bytes, (float *)prob->data + h * n_all * top_k,
               bytes);
    }
    ops->moe_dispatch(ops, &(m2_moe_dispatch_args){ .topk_idx = &r.idx,
                                                    .topk_prob = &r.prob,
                                                    .n_experts = (int)experts,
                                                    .gather_ids = &r.gather,
                                                    .probs_sorted = &r.sorted,
                                                    .expert_offsets = &r.offsets,
                                                    .route_pos = &r.pos });
    ops->moe_ffn(ops, &(m2_moe_ffn_args){ .x = &some,
                                          .gather_ids = &r.gather,
                                          .probs_sorted = &r.sorted,
                                          .expert_offsets = &r.offsets,
                                          .route_pos = &r.pos,
                                          .w_gate = &w[0],
                                          .w_up = &w[1],
                                          .w_down = &w[2],
                                          .routes = &r.routes,
                                          .y = &r.y });
    check_no_fault();
    return r;
}

/* Two experts of four for each token and head, on the device's own choice. */
typedef struct experts_case {
    m2_tensor x, w[3], idx, prob;
} experts_case;

static experts_case draw_experts(random_case *c, const m2_ops *ops, int64_t n, int i)
{
    static const int64_t sizes[][2] = { { 256, 1280 }, { 64, 32 }, { 40, 24 } };
    const int64_t heads = 2, experts = 4, top_k = 2, dim = sizes[i][0], width = sizes[i][1];
    experts_case e = { .x = random_tensor(c, M2_BF16, 1, n, heads, dim),
                       .idx = m2_tensor_make(&c->arena, M2_I32, heads, n, top_k),
                       .prob = m2_tensor_make(&c->arena, M2_F32, heads, n, top_k) };
    for (int k = 0; k < 3; k++)
        e.w[k] = random_tensor(c, M2_BF16, 0.1f, heads * experts, k < 2 ? dim : width,
                               k < 2 ? width : dim);
    m2_tensor logits = random_tensor(c, M2_F32, 1, heads, n, experts);
    ops->moe_select(
        ops, &(m2_moe_select_args){
                 .logits = &logits, .route_scale = 2, .topk_idx = &e.idx, .topk_prob = &e.prob });
    return e;
}

/* Catches sums over a tile's other rows, and a tile shape chosen by an expert's number of rows. */
static void experts_of_a_token_do_not_depend_on_the_others(void **state)
{
    (void)state;
    if (test.why_not) skip();
    const m2_ops ops = other();
    for (int i = 0; i < 3; i++) {
        random_case c;
        random_case_open(&c, 60 + (uint64_t)i);
        const int64_t n = 333, few = 9;
        const experts_case e = draw_experts(&c, &ops, n, i);
        const routed all = run_experts_of(&c, &ops, &e.x, n, &e.idx, &e.prob, e.w);
        const routed some = run_experts_of(&c, &ops, &e.x, few, &e.idx, &e.prob, e.w);
        assert_memory_equal(all.y.data, some.y.data, m2_tensor_bytes(&some.y));
        random_case_close(&c);
    }
}

/* ---- a NaN stays in its row: these have no rows that twin_ops could spoil by itself ---- */

/* Rows for which is_spoilt says 1 hold a NaN in every place, the others have the bits they had. */
static void check_spoilt(const m2_tensor *before, const m2_tensor *after, int64_t n_rows,
                         const char *is_spoilt)
{
    const size_t bytes = m2_tensor_bytes(before) / (size_t)n_rows;
    const int64_t width = m2_tensor_count(before) / n_rows;
    for (int64_t r = 0; r < n_rows; r++) {
        const char *row = (const char *)after->data + bytes * (size_t)r;
        if (!is_spoilt[r])
            assert_memory_equal(row, (const char *)before->data + bytes * (size_t)r, bytes);
        for (int64_t i = 0; i < width && is_spoilt[r]; i++) {
            const float value = after->dtype == M2_F32 ? ((const float *)row)[i]
                                                       : m2_bf16_to_f32(((const m2_bf16 *)row)[i]);
            assert_true(isnan(value));
        }
    }
}

static void spoil_token(const m2_tensor *x, int64_t token)
{
    const size_t bytes = m2_tensor_bytes(x) / (size_t)x->shape[0];
    memset((char *)x->data + bytes * (size_t)token, 0xff, bytes);
}

/* Catches a sum over a tile's other tokens, a wait for a score that no comparison finds. */
static void a_nan_reaches_the_logits_of_its_token_alone(void **state)
{
    (void)state;
    if (test.why_not) skip();
    const m2_ops ops = other();
    static const int64_t sizes[][3] = { { 256, 256, 2 }, { 64, 16, 3 }, { 33, 7, 2 } };
    for (int i = 0; i < 3; i++) {
        random_case c;
        random_case_open(&c, 70 + (uint64_t)i);
        const int64_t n = 150, token = 37, heads = sizes[i][2];
        m2_tensor x = random_tensor(&c, M2_BF16, 1, n, heads, sizes[i][0]), logits[2];
        m2_tensor gate = random_tensor(&c, M2_F32, 0.2f, heads * sizes[i][1], sizes[i][0]);
        for (int k = 0; k < 2; k++) {
            logits[k] = m2_tensor_make(&c.arena, M2_F32, heads, n, sizes[i][1]);
            if (k == 1) spoil_token(&x, token);
            ops.moe_logits(&ops,
                           &(m2_moe_logits_args){ .x = &x, .gate = &gate, .logits = &logits[k] });
            check_no_fault();
        }
        char is_spoilt[3 * 150] = { 0 };
        for (int64_t h = 0; h < heads; h++) is_spoilt[h * n + token] = 1;
        check_spoilt(&logits[0], &logits[1], heads * n, is_spoilt);
        random_case_close(&c);
    }
}

/* Catches a row behind an expert's last that is read from another token, a row that is multiplied
 * by 0 instead of left out, and a kernel that waits for ever. */
static void a_nan_reaches_the_experts_of_its_token_alone(void **state)
{
    (void)state;
    if (test.why_not) skip();
    const m2_ops ops = other();
    for (int i = 0; i < 3; i++) {
        random_case c;
        random_case_open(&c, 80 + (uint64_t)i);
        enum { N = 333, TOKEN = 211 };
        const experts_case e = draw_experts(&c, &ops, N, i);
        const routed clean = run_experts_of(&c, &ops, &e.x, N, &e.idx, &e.prob, e.w);
        spoil_token(&e.x, TOKEN);
        const routed spoilt = run_experts_of(&c, &ops, &e.x, N, &e.idx, &e.prob, e.w);
        char is_spoilt[N] = { 0 };
        is_spoilt[TOKEN] = 1;
        check_spoilt(&clean.y, &spoilt.y, N, is_spoilt);
        random_case_close(&c);
    }
}

/* ---- the program ---- */

static m2_status open_device(const char *mode)
{
    if (strcmp(mode, "guarded") == 0 || test.is_spoiled) {
        M2_TRY(m2_guarded_open(test.pool, &test.guarded));
        if (test.is_spoiled) m2_guarded_spoil(test.guarded);
        m2_ops_init_guarded(&test.device, test.guarded);
        return M2_OK;
    }
    const m2_gpu_params params = { .use_portable = strcmp(mode, "portable") == 0,
                                   .prefers_dnn = test.is_cudnn };
    M2_TRY(m2_gpu_open(&params, &test.gpu));
    m2_ops_init_gpu(&test.device, test.gpu);
    return M2_OK;
}

static int open_test(const char *mode)
{
    if (m2_pool_create(0, &test.pool) != M2_OK ||
        m2_ops_init_cpu(&test.twin.cpu, test.pool, M2_ISA_BEST) != M2_OK) {
        fprintf(stderr, "test_gpu_ops: %s\n", m2_last_error());
        return 1;
    }
    const m2_status status = open_device(mode);
    if (status == M2_ERR_UNSUPPORTED) {
        test.why_not = m2_last_error();
        printf("skipped, every test: %s\n", test.why_not);
        return 0;
    }
    if (status != M2_OK || m2_mirror_open(&test.device, &test.twin.mirror) != M2_OK) {
        fprintf(stderr, "test_gpu_ops: %s\n", m2_last_error());
        return 1;
    }
    if (test.gpu) printf("%s\n", m2_gpu_banner(test.gpu));
    if (test.twin.is_quick) m2_mirror_use_own_memory(test.twin.mirror);
    m2_ops_init_mirror(&test.twin.other, test.twin.mirror);
    m2_ops_init_twin(&test.ops, &test.twin);
    return 0;
}

static void close_test(void)
{
    m2_mirror_close(test.twin.mirror);
    m2_guarded_close(test.guarded);
    m2_gpu_close(test.gpu);
    m2_pool_destroy(test.pool);
}

static void print_seen(void)
{
    for (int op = 0; op < M2_OP_COUNT && !test.why_not; op++) {
        const twin_seen *seen = &test.twin.seen[op];
        if (seen->n_calls == 0) continue;
        printf("%-20s %4d calls  f32 %.1e  bf16 %.4f%% by %.2f steps", m2_op_infos[op].name,
               seen->n_calls, seen->f32_error, 100 * seen->share, seen->steps);
        if (seen->cpu_truth_error > 0)
            printf("  truth %.2e, the CPU's %.2e", seen->truth_error, seen->cpu_truth_error);
        printf("\n");
    }
}

/* The tests' own lines go to a file: a failure that is wanted must not be counted as one. */
static int run_into(FILE *file, const struct CMUnitTest *tests, int n)
{
    fflush(stdout);
    fflush(stderr);
    const int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);
    if (out < 0 || err < 0 || dup2(fileno(file), STDOUT_FILENO) < 0 ||
        dup2(fileno(file), STDERR_FILENO) < 0)
        return -1;
    const int n_failed = _cmocka_run_group_tests("gpu_ops", tests, (size_t)n, NULL, NULL);
    fflush(stdout);
    fflush(stderr);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    close(out);
    close(err);
    return n_failed;
}

/* Whether the file has the line "[  FAILED  ] NAME". */
static int has_failed(FILE *file, const char *name)
{
    static const char mark[] = "[  FAILED  ] ";
    char line[256];
    rewind(file);
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, mark, sizeof mark - 1) == 0 && strcmp(line + sizeof mark - 1, name) == 0)
            return 1;
    }
    return 0;
}

/* Every one of the tests must fail; gives back how many do not. */
static int run_spoiled(const struct CMUnitTest *tests, int n)
{
    int n_missed = 0;
    FILE *file = tmpfile();
    if (!file || run_into(file, tests, n) < 0) {
        fprintf(stderr, "test_gpu_ops: no file for the tests' output\n");
        if (file) fclose(file);
        return n;
    }
    for (int i = 0; i < n; i++) {
        const int is_seen = has_failed(file, tests[i].name);
        printf("%s %s, one value wrong\n", is_seen ? "[       OK ]" : "[  FAILED  ]",
               tests[i].name);
        n_missed += !is_seen;
    }
    fclose(file);
    return n_missed;
}

/* In mode `cudnn`, what has attention in it. */
static int is_wanted(const char *name)
{
    return !test.is_cudnn || strstr(name, "attention") || strstr(name, "layer") ||
           strstr(name, "text encoder");
}

static int keep_wanted(struct CMUnitTest *tests, int n)
{
    int n_kept = 0;
    for (int i = 0; i < n; i++)
        if (is_wanted(tests[i].name)) tests[n_kept++] = tests[i];
    return n_kept;
}

static int run_all(void)
{
    struct CMUnitTest tests[M2_OP_COUNT + N_PARTS + 5];
    int n = 0;
    for (int op = 0; op < M2_OP_COUNT; op++)
        tests[n++] = (struct CMUnitTest){ m2_op_infos[op].name, operator_agrees_with_the_cpu, NULL,
                                          NULL, (void *)(uintptr_t)op };
    if (test.is_spoiled) return run_spoiled(tests, n);
    /* Gigabytes that would tell nothing where the CPU is compared with itself. */
    for (size_t i = 0; i < N_PARTS && !test.guarded; i++)
        tests[n++] = (struct CMUnitTest){ parts[i].name, part_agrees_with_the_cpu, NULL, NULL,
                                          (void *)(uintptr_t)i };
    const struct CMUnitTest bits[] = {
        cmocka_unit_test(attention_of_a_segment_does_not_depend_on_the_others),
        cmocka_unit_test(logits_of_a_token_do_not_depend_on_the_others),
        cmocka_unit_test(experts_of_a_token_do_not_depend_on_the_others),
        cmocka_unit_test(a_nan_reaches_the_logits_of_its_token_alone),
        cmocka_unit_test(a_nan_reaches_the_experts_of_its_token_alone),
    };
    const int n_bits = (int)(sizeof bits / sizeof bits[0]);
    for (int i = 0; i < n_bits && !test.twin.is_quick; i++) tests[n++] = bits[i];
    n = keep_wanted(tests, n);
    return _cmocka_run_group_tests("gpu_ops", tests, (size_t)n, NULL, NULL);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (strcmp(mode, "portable") != 0 && strcmp(mode, "fast") != 0 && strcmp(mode, "cudnn") != 0 &&
        strcmp(mode, "guarded") != 0 && strcmp(mode, "spoiled") != 0) {
        fprintf(stderr,
                "usage: test_gpu_ops portable|fast|cudnn|guarded|spoiled [quick] [only PATTERN]\n");
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "quick") == 0) test.twin.is_quick = 1;
        if (strcmp(argv[i], "only") == 0 && i + 1 < argc) cmocka_set_test_filter(argv[++i]);
    }
    test.is_spoiled = strcmp(mode, "spoiled") == 0;
    test.is_cudnn = strcmp(mode, "cudnn") == 0;
    if (open_test(mode) != 0) return 1;
    const int n_failed = run_all();
    print_seen();
    close_test();
    return n_failed ? 1 : 0;
}
