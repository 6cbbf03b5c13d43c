/* The table that times another one: what it passes on, what it counts, what it adds up. */
#include "random_case.h"

#include "backend/device.h"
#include "backend/profile.h"

#include <string.h>

static const m2_profile_row *find_row(const m2_profile_report *report, const char *op,
                                      const char *detail)
{
    for (int i = 0; i < report->n_rows; i++)
        if (strcmp(report->rows[i].op, op) == 0 && strcmp(report->rows[i].detail, detail) == 0)
            return &report->rows[i];
    fail_msg("no row of %s \"%s\"", op, detail);
    return NULL;
}

static m2_tensor multiply(random_case *c, const m2_ops *ops, const m2_tensor *x, const m2_tensor *w)
{
    m2_tensor y = m2_tensor_make(&c->arena, M2_BF16, x->shape[0], w->shape[0]);
    memset(y.data, 0xff, m2_tensor_bytes(&y));
    ops->linear(ops, &(m2_linear_args){ .x = x, .w = w, .y = &y });
    return y;
}

/* The scalar table, which must outlive the profile of it, and room for n_calls. */
static void open_profile(random_case *c, uint64_t seed, m2_ops *ops, m2_profile *profile,
                         int n_calls)
{
    *ops = reference_ops();
    random_case_open(c, seed);
    check_ok(m2_profile_open(profile, ops, n_calls));
}

/* Results are those of the table inside, to the bit; calls of one weight shape are one row whatever
 * the rows of x; another shape is another row; nothing is left for the next reading.  Catches a slot
 * wired to another operator, a key that mixes shapes or splits one, counts that are never cleared. */
static void calls_are_passed_on_and_gathered_by_weight_shape(void **state)
{
    (void)state;
    random_case c;
    m2_ops ops;
    m2_profile profile;
    m2_profile_report report;
    open_profile(&c, 1, &ops, &profile, 8);
    const m2_tensor x = random_tensor(&c, M2_BF16, 1, 7, 48), two = m2_tensor_rows(&x, 0, 2);
    const m2_tensor w = random_tensor(&c, M2_BF16, 1, 20, 48);
    const m2_tensor other = random_tensor(&c, M2_BF16, 1, 48, 48);

    const m2_tensor direct = multiply(&c, &ops, &x, &w);
    const m2_tensor timed = multiply(&c, &profile.ops, &x, &w);
    assert_memory_equal(timed.data, direct.data, m2_tensor_bytes(&direct));
    multiply(&c, &profile.ops, &two, &w);
    multiply(&c, &profile.ops, &x, &other);
    check_ok(m2_profile_read(&profile, &report));

    assert_int_equal(report.n_rows, 2);
    assert_int_equal(report.n_calls, 3);
    const m2_profile_row *row = find_row(&report, "linear", "48->20");
    assert_int_equal(row->n_calls, 2);
    assert_true(row->flop == 2.0 * (7 + 2) * 48 * 20);
    assert_true(row->bytes == 2.0 * ((7 + 2) * (48 + 20) + 2 * 48 * 20));
    assert_int_equal(find_row(&report, "linear", "48->48")->n_calls, 1);

    check_ok(m2_profile_read(&profile, &report));
    assert_int_equal(report.n_rows, 0);
    assert_true(report.flop == 0 && report.ms == 0);
    m2_profile_close(&profile);
    random_case_close(&c);
}

/* The parts lie inside the whole, in the order of their times.  Catches marks of other calls, a unit
 * that is not milliseconds. */
static void times_add_up_inside_the_whole(void **state)
{
    (void)state;
    random_case c;
    random_case_open(&c, 2);
    const m2_ops ops = reference_ops();
    m2_profile profile;
    m2_profile_report report;
    m2_timer *clock = NULL;
    check_ok(m2_profile_open(&profile, &ops, 16));
    check_ok(m2_host_device.timer_create(&ops, 2, &clock));
    const m2_tensor x = random_tensor(&c, M2_BF16, 1, 64, 256);
    const m2_tensor small = random_tensor(&c, M2_BF16, 1, 8, 256);
    const m2_tensor large = random_tensor(&c, M2_BF16, 1, 512, 256);
    m2_host_device.timer_mark(&ops, clock, 0);
    for (int i = 0; i < 4; i++) {
        multiply(&c, &profile.ops, &x, &small);
        multiply(&c, &profile.ops, &x, &large);
    }
    m2_host_device.timer_mark(&ops, clock, 1);
    check_ok(m2_profile_read(&profile, &report));
    const double outside_ms = m2_host_device.timer_ms(&ops, clock, 0, 1);
    assert_int_equal(report.n_rows, 2);
    assert_string_equal(report.rows[0].detail, "256->512"); /* 64 times the work */
    assert_true(report.rows[1].ms > 0);
    check_near(report.ms, report.rows[0].ms + report.rows[1].ms, 1e-9, "sum of rows");
    assert_true(report.ms <= report.whole_ms && report.whole_ms <= outside_ms);
    m2_host_device.timer_destroy(&ops, clock);
    m2_profile_close(&profile);
    random_case_close(&c);
}

/* Off, nothing is counted and everything is computed; with more calls than marks everything is
 * computed too, and the reading says so instead of leaving calls out. */
static void calls_without_marks_are_computed_and_told(void **state)
{
    (void)state;
    random_case c;
    m2_ops ops;
    m2_profile profile;
    m2_profile_report report;
    open_profile(&c, 3, &ops, &profile, 1);
    const m2_tensor x = random_tensor(&c, M2_BF16, 1, 3, 32),
                    w = random_tensor(&c, M2_BF16, 1, 5, 32);
    const m2_tensor direct = multiply(&c, &ops, &x, &w);

    m2_profile_switch(&profile, 0);
    m2_tensor y = multiply(&c, &profile.ops, &x, &w);
    assert_memory_equal(y.data, direct.data, m2_tensor_bytes(&direct));
    m2_profile_switch(&profile, 1);
    check_ok(m2_profile_read(&profile, &report));
    assert_int_equal(report.n_calls, 0);

    multiply(&c, &profile.ops, &x, &w);
    y = multiply(&c, &profile.ops, &x, &w);
    assert_memory_equal(y.data, direct.data, m2_tensor_bytes(&direct));
    check_fails(m2_profile_read(&profile, &report), M2_ERR_INTERNAL, "2 calls");
    m2_profile_close(&profile);
    random_case_close(&c);
}

static void add_flop(void *user, const m2_cost *cost)
{
    *(double *)user += cost->flop;
}

/* Who watches is told of the work of every call, timed or not, and of each once. */
static void a_watcher_is_told_of_every_call(void **state)
{
    (void)state;
    random_case c;
    m2_ops ops;
    m2_profile profile;
    m2_profile_report report;
    double flop = 0;
    open_profile(&c, 4, &ops, &profile, 4);
    profile.watch = add_flop;
    profile.watch_user = &flop;
    const m2_tensor x = random_tensor(&c, M2_BF16, 1, 3, 32),
                    w = random_tensor(&c, M2_BF16, 1, 5, 32);
    const m2_tensor direct = multiply(&c, &ops, &x, &w);
    assert_true(flop == 0);
    for (int is_on = 0; is_on < 2; is_on++) {
        m2_profile_switch(&profile, is_on);
        const m2_tensor y = multiply(&c, &profile.ops, &x, &w);
        assert_memory_equal(y.data, direct.data, m2_tensor_bytes(&direct));
        assert_true(flop == (1 + is_on) * 2.0 * 3 * 32 * 5);
    }
    check_ok(m2_profile_read(&profile, &report));
    assert_int_equal(report.n_calls, 1);
    m2_profile_close(&profile);
    random_case_close(&c);
}

/* ---- work ---- */

static m2_tensor shape(m2_dtype dtype, int64_t a, int64_t b, int64_t c)
{
    return c   ? m2_tensor_over(NULL, dtype, a, b, c)
           : b ? m2_tensor_over(NULL, dtype, a, b)
               : m2_tensor_over(NULL, dtype, a);
}

/* The released layer on the 29,616 tokens of a 272p step, against figures that were counted apart from
 * this program, per step of 40 layers.  Catches a factor of two, a forgotten branch, weights counted
 * for every row. */
static void released_operators_cost_what_was_counted_by_hand(void **state)
{
    (void)state;
    const int64_t n = 29616, routes = n * 72;
    const int64_t segments[] = { 0, 15015, n };
    const m2_tensor q = shape(M2_BF16, n, 24, 128);
    m2_tensor y = shape(M2_BF16, n, 24, 128);
    const m2_cost attention = m2_cost_of_attention(&(m2_attention_args){
        .q = &q, .k = &q, .v = &q, .segments = segments, .n_segments = 2, .y = &y });
    check_near(40 * attention.flop / 1e12, 215.6, 0.05, "attention");
    assert_true(attention.bytes == 4.0 * (double)n * 3072 * 2);

    const m2_tensor x = shape(M2_BF16, n, 12, 256), ids = shape(M2_I32, routes, 0, 0);
    const m2_tensor offsets = shape(M2_I32, 3073, 0, 0);
    const m2_tensor up = shape(M2_BF16, 3072, 256, 1280), down = shape(M2_BF16, 3072, 1280, 256);
    m2_tensor scratch = shape(M2_BF16, routes, 256, 0), out = shape(M2_BF16, n, 12, 256);
    const m2_cost experts = m2_cost_of_moe_ffn(&(m2_moe_ffn_args){ .x = &x,
                                                                   .gather_ids = &ids,
                                                                   .probs_sorted = &ids,
                                                                   .expert_offsets = &offsets,
                                                                   .route_pos = &ids,
                                                                   .w_gate = &up,
                                                                   .w_up = &up,
                                                                   .w_down = &down,
                                                                   .routes = &scratch,
                                                                   .y = &out });
    check_near(36 * experts.flop / 1e12, 100.6 + 50.3, 0.1, "routed experts");
    /* weights once: 5.6 GiB; tokens twice; four tables of routes less one */
    check_near(experts.bytes, 3 * 3072.0 * 256 * 1280 * 2 + 2.0 * n * 3072 * 2 + 3.0 * routes * 4,
               2e4, "bytes of the experts");

    const m2_tensor s = shape(M2_BF16, n, 4, 3072), o = shape(M2_BF16, n, 3072, 0);
    const m2_tensor phi = shape(M2_F32, 12288, 24, 0), norm = shape(M2_F32, 12288, 0, 0);
    m2_tensor h4 = shape(M2_BF16, n, 4, 0), h16 = shape(M2_BF16, n, 4, 4), s_out = s, half = o;
    const m2_mhc_open_args open = { .coefficients = { .s = &s,
                                                      .norm = &norm,
                                                      .phi = &phi,
                                                      .h_pre = &h4,
                                                      .h_post = &h4,
                                                      .h_res = &h16 },
                                    .x = &half };
    const m2_cost opened = m2_cost_of_mhc_open(&open);
    const m2_cost written = m2_cost_of_mhc_write(
        &(m2_mhc_write_args){ .s = &s, .h_res = &h16, .h_post = &h4, .o = &o, .s_out = &s_out });
    check_near(80 * (opened.flop + written.flop) / 1e12, 1.40 + 0.35, 0.01, "mHC");
    /* In one pass the streams are read once where these two read them twice. */
    check_near(80 * (opened.bytes + written.bytes) / 1e9, 145.6 + 58.2, 1.0, "bytes of mHC");
    const m2_mhc_write_open_args both = {
        .write = { .s = &s, .h_res = &h16, .h_post = &h4, .o = &o, .s_out = &s_out }, .open = open
    };
    const m2_cost joined = m2_cost_of_mhc_write_open(&both);
    check_near(joined.flop, opened.flop + written.flop, 1, "mHC in one pass");
    check_near(80 * joined.bytes / 1e9, 145.6, 1.0, "bytes of mHC in one pass");
}

/* Weights of a modality without rows are not read. */
static void weights_that_no_row_uses_are_not_counted(void **state)
{
    (void)state;
    const m2_tensor x = shape(M2_BF16, 10, 64, 0), w = shape(M2_BF16, 3 * 16, 64, 0);
    m2_tensor y = shape(M2_BF16, 10, 16, 0);
    const m2_groups groups = { 3, { 0, 6, 10, 10 } };
    const m2_cost cost =
        m2_cost_of_linear(&(m2_linear_args){ .x = &x, .w = &w, .groups = &groups, .y = &y });
    assert_string_equal(cost.detail, "64->16 of 3");
    assert_true(cost.flop == 2.0 * 10 * 64 * 16);
    check_near(cost.bytes, 2.0 * (10 * 64 + 10 * 16 + 2 * 16 * 64), 1e-6, "bytes");
}

/* A joined operator moves what goes in and what comes out, not the values between its two parts: by hand,
 * in bf16.  Catches the scratch counted, whole or once where it is both written and read. */
static void what_joined_operators_hand_over_is_not_moved(void **state)
{
    (void)state;
    const int64_t n = 100, k = 64, segments[] = { 0, n };
    const m2_tensor x = shape(M2_BF16, n, k, 0), w = shape(M2_BF16, 48, k, 0);
    m2_tensor between = shape(M2_BF16, n, 48, 0), half = shape(M2_BF16, n, 24, 0);
    const m2_linear_args linear = { .x = &x, .w = &w, .y = &between };
    const double in = 2.0 * (100 * 64 + 48 * 64);
    const m2_cost act =
        m2_cost_of_linear_swiglu7(&(m2_linear_swiglu7_args){ .linear = linear, .y = &half });
    assert_true(act.bytes == in + 2.0 * 100 * 24);
    assert_true(act.flop == 2.0 * 100 * 64 * 48);

    const m2_tensor a = shape(M2_BF16, n, 48, 0), b = a;
    m2_tensor sum = shape(M2_BF16, n, 48, 0);
    const m2_cost added = m2_cost_of_linear_add(&(m2_linear_add_args){
        .linear = linear, .add = { .a = &a, .b = &b, .c = &between, .y = &sum } });
    assert_true(added.bytes == in + 3 * 2.0 * 100 * 48);

    const m2_tensor rope = shape(M2_F32, n, 8, 0), seq = shape(M2_I32, n, 0, 0);
    m2_tensor q = shape(M2_BF16, n, 4, 8), kv = shape(M2_BF16, n, 1, 8);
    const m2_cost turned = m2_cost_of_linear_qk_norm_rope(&(m2_linear_qk_norm_rope_args){
        .linear = linear,
        .heads = { .qkv = &between, .rope = &rope, .seq = &seq, .q = &q, .k = &kv, .v = &kv } });
    assert_true(turned.bytes == in + 4.0 * 100 * 8 + 4.0 * 100 + 2.0 * 100 * (32 + 8 + 8));

    const m2_tensor g = shape(M2_BF16, n, 4, 0);
    m2_tensor mixed = shape(M2_BF16, n, 4, 8), y = shape(M2_BF16, n, 32, 0);
    const m2_cost gated = m2_cost_of_attention_gated(
        &(m2_attention_gated_args){ .attention = { .q = &q,
                                                   .k = &kv,
                                                   .v = &kv,
                                                   .segments = segments,
                                                   .n_segments = 1,
                                                   .y = &mixed },
                                    .gate = { .a = &mixed, .g = &g, .seq = &seq, .y = &y } });
    assert_true(gated.bytes ==
                2.0 * 100 * (32 + 8 + 8) + 2.0 * 100 * 4 + 4.0 * 100 + 2.0 * 100 * 32);
}

/* Over a measuring table a network is counted without memory or time. */
static void a_plan_is_counted_without_being_run(void **state)
{
    (void)state;
    m2_ops measure;
    m2_profile profile;
    m2_profile_report report;
    m2_ops_init_measure(&measure);
    check_ok(m2_profile_open(&profile, &measure, 0));
    const m2_tensor x = shape(M2_BF16, 1000, 4096, 0), w = shape(M2_BF16, 8192, 4096, 0);
    m2_tensor y = shape(M2_F32, 1000, 8192, 0);
    profile.ops.linear(&profile.ops, &(m2_linear_args){ .x = &x, .w = &w, .y = &y });
    check_ok(m2_profile_read(&profile, &report));
    assert_int_equal(report.n_calls, 1);
    assert_true(report.flop == 2.0 * 1000 * 4096 * 8192);
    assert_true(report.bytes == 1000 * 4096 * 2.0 + 8192 * 4096 * 2.0 + 1000 * 8192 * 4.0);
    assert_true(report.ms == 0 && report.whole_ms == 0);
    m2_profile_close(&profile);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_are_passed_on_and_gathered_by_weight_shape),
        cmocka_unit_test(times_add_up_inside_the_whole),
        cmocka_unit_test(calls_without_marks_are_computed_and_told),
        cmocka_unit_test(a_watcher_is_told_of_every_call),
        cmocka_unit_test(released_operators_cost_what_was_counted_by_hand),
        cmocka_unit_test(weights_that_no_row_uses_are_not_counted),
        cmocka_unit_test(what_joined_operators_hand_over_is_not_moved),
        cmocka_unit_test(a_plan_is_counted_without_being_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
