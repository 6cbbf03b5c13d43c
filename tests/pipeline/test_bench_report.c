/* What a measurement makes of its clocks and digests, with a device that does nothing. */
#include "support/check.h"

#include "pipeline/bench.h"
#include "pipeline/bench_table.h"

#include <stdlib.h>
#include <string.h>

/* ---- roofs ---- */

static int n_products, n_copies;

static void count_linear(const m2_ops *ops, const m2_linear_args *args)
{
    (void)ops;
    assert_int_equal(args->x->shape[0], 8192);
    assert_int_equal(args->w->shape[0], 8192);
    assert_true(args->x->data != args->w->data && args->w->data != args->y->data);
    n_products++;
}

static void count_convert(const m2_ops *ops, const m2_convert_args *args)
{
    (void)ops;
    assert_int_equal(m2_tensor_bytes(args->x), 1 << 30);
    assert_true((char *)args->x->data + (1 << 30) <= (char *)args->y->data);
    n_copies++;
}

static void no_upload(const m2_ops *ops, m2_tensor *to, const void *from_host)
{
    (void)ops;
    (void)to;
    (void)from_host;
}

/* A clock that says 2 ms for each call, 9 for one that was disturbed. */
static double two_ms(const m2_ops *ops, const m2_timer *timer, int from, int to)
{
    (void)ops;
    (void)timer;
    return from == 4 ? 9 : 2.0 * (to - from);
}

/* The median of the timed calls: 2 n^3 FLOP, each byte read and written.  Catches a copy counted once, a
 * mean that one disturbed call pulls down, warm-up calls among the timed. */
static void roofs_are_medians_of_flop_and_of_bytes_both_ways(void **state)
{
    (void)state;
    m2_device_api api = m2_host_device;
    m2_ops ops;
    m2_arena scratch;
    m2_roof roof;
    m2_ops_init_measure(&ops);
    api.timer_ms = two_ms;
    ops.device_api = &api; /* not the host: sizes are those of a device */
    ops.linear = count_linear;
    ops.convert = count_convert;
    ops.upload = no_upload;
    const size_t bytes = m2_roof_scratch_bytes(&ops);
    check_ok(m2_arena_create(&scratch, "scratch", bytes)); /* never touched */
    check_ok(m2_roof_measure(&ops, &scratch, &roof));
    check_near(roof.flop_s / (2.0 * 8192 * 8192 * 8192 / 2e-3), 1, 1e-12, "product");
    check_near(roof.bytes_s / (2.0 * (1 << 30) / 2e-3), 1, 1e-12, "copy");
    assert_true(n_products > 10 && n_copies > 10);
    assert_int_equal(scratch.used, 0);
    assert_true(scratch.peak <= bytes);
    m2_arena_destroy(&scratch);
}

static void medians_are_of_sorted_values(void **state)
{
    (void)state;
    double odd[] = { 5, 1, 9 }, even[] = { 4, 1, 3, 100 };
    assert_true(m2_median(odd, 3) == 5);
    assert_true(m2_median(even, 4) == 3.5);
}

/* ---- the report ---- */

typedef struct made_up {
    m2_engine engine;
    m2_profile_row rows[2];
    double step_ms[3];
    m2_bench bench;
} made_up;

/* A step of 10 ms on roofs of 700 TFLOP/s and 4.1 TB/s: 3.5 TFLOP in 8 ms, 4.1 GB in 2 ms. */
static made_up *make(const char *isa)
{
    made_up *it = calloc(1, sizeof *it);
    m2_model_config_init(&it->engine.config);
    check_ok(m2_pool_create(1, &it->engine.pool));
    it->engine.ops = (m2_ops){ .backend = "cuda", .isa = isa };
    it->rows[0] = (m2_profile_row){ "attention", "24 x 128", 40, 8, 3.5e12, 1e9 };
    it->rows[1] = (m2_profile_row){ "add", "3072", 36, 2, 0, 4.1e9 };
    memcpy(it->step_ms, (double[]){ 11, 10, 9.5 }, sizeof it->step_ms);
    it->bench = (m2_bench){
        .engine = &it->engine,
        .is_synthetic = 1,
        .roof = { 8192, 1 << 30, 700e12, 4.1e12 },
        .n_steps = 3,
        .step_ms = it->step_ms,
        .parts = { it->rows, 2, 76, 10, 3.5e12, 5.1e9, 10.2 },
        .n_runs = 4,
    };
    for (int i = 0; i < 4; i++) strcpy(it->bench.digests[i], "00aa");
    return it;
}

static void close_made_up(made_up *it)
{
    m2_pool_destroy(it->engine.pool);
    m2_model_config_free(&it->engine.config);
    free(it);
}

static void check_holds(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("no \"%s\" in:\n%s", part, text);
}

/* Catches f32 arithmetic that is held against what bf16 units reach. */
static void arithmetic_in_f32_has_no_roof(void **state)
{
    (void)state;
    const m2_roof roof = { 8192, 1 << 30, 700e12, 4.1e12 };
    m2_profile_row row = { .op = "linear", .detail = "f32 3072->24", .flop = 7e12, .bytes = 4.1e9 };
    check_near(m2_roof_limit_ms(&roof, &row), 1.0, 1e-12, "f32: the time of its bytes");
    strcpy(row.detail, "3072->24");
    check_near(m2_roof_limit_ms(&roof, &row), 10.0, 1e-12, "bf16: the time of its arithmetic");
}

/* 3.5 TFLOP at 700 TFLOP/s are 5 ms, 4.1 GB at 4.1 TB/s 1 ms: the limits are the larger of both for each
 * part, and theirs is the sum.  A part's share of its limit is not the step's. */
static void limits_are_those_of_each_part(void **state)
{
    (void)state;
    made_up *it = make("sm_90");
    char *text = NULL;
    check_ok(m2_bench_report(&it->bench, 0, &text));
    check_holds(text, "a step      10.000 ms (least 9.500, most 11.000) of 3");
    check_holds(text, "limit       6.000 ms with every part at its roof: 60.0% reached");
    check_holds(text, "work        3.5 TFLOP, 5.1 GB: 350 TFLOP/s, 50.0% of the product's roof");
    check_holds(text, "5.000  62.5\n"); /* of attention */
    check_holds(text, "1.000  50.0\n"); /* of add       */
    check_holds(text, "add up to 100.0% of a step");
    check_holds(text, "bits        equal: 4 runs");
    free(text);
    close_made_up(it);
}

/* An H200 that is slower than an H200 is: shares of such a roof would look too good. */
static void a_roof_that_is_too_low_does_not_count(void **state)
{
    (void)state;
    made_up *it = make("NVIDIA H200");
    char *text = NULL;
    check_ok(m2_bench_report(&it->bench, 0, &text));
    check_holds(text, "NOT COUNTED: the product is below 720 TFLOP/s");
    free(text);
    check_ok(m2_bench_report(&it->bench, 1, &text));
    check_holds(text, "\"counts\":false");
    free(text);
    it->bench.roof.flop_s = 750e12;
    it->bench.roof.bytes_s = 3.9e12;
    check_ok(m2_bench_report(&it->bench, 0, &text));
    check_holds(text, "NOT COUNTED: the copy is below 4.0 TB/s");
    free(text);
    it->bench.roof.bytes_s = 4.0e12;
    check_ok(m2_bench_report(&it->bench, 0, &text));
    assert_null(strstr(text, "NOT COUNTED"));
    free(text);
    close_made_up(it);
}

/* One digest that differs, whichever it is, is said, and all are shown. */
static void bits_that_differ_are_said(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        made_up *it = make("sm_90");
        char *text = NULL;
        assert_true(m2_bench_has_equal_bits(&it->bench));
        strcpy(it->bench.digests[i], "00ab");
        assert_false(m2_bench_has_equal_bits(&it->bench));
        check_ok(m2_bench_report(&it->bench, 0, &text));
        check_holds(text, "bits        DIFFERENT");
        check_holds(text, "sha256 00ab");
        check_holds(text, "sha256 00aa");
        free(text);
        close_made_up(it);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(roofs_are_medians_of_flop_and_of_bytes_both_ways),
        cmocka_unit_test(medians_are_of_sorted_values),
        cmocka_unit_test(limits_are_those_of_each_part),
        cmocka_unit_test(arithmetic_in_f32_has_no_roof),
        cmocka_unit_test(a_roof_that_is_too_low_does_not_count),
        cmocka_unit_test(bits_that_differ_are_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
