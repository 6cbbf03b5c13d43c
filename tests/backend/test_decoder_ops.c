/* The element-wise and layout operators of the two decoders, by small cases worked out by hand or
 * in f64, and every instruction set and thread count against the scalar definition. */
#include "support/check.h"

#include "backend/cpu/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct test_env {
    m2_arena arena;
    m2_ops ops; /* scalar, one thread */
} test_env;

static int set_up(void **state)
{
    test_env *env = calloc(1, sizeof *env);
    assert_non_null(env);
    check_ok(m2_arena_create(&env->arena, "test", (size_t)64 << 20));
    check_ok(m2_ops_init_cpu(&env->ops, NULL, M2_ISA_REF));
    *state = env;
    return 0;
}

static int tear_down(void **state)
{
    test_env *env = *state;
    m2_arena_destroy(&env->arena);
    free(env);
    return 0;
}

static float get(const m2_tensor *tensor, int64_t i)
{
    float value;
    const size_t size = m2_dtype_bytes(tensor->dtype);
    m2_convert((const char *)tensor->data + (size_t)i * size, tensor->dtype, &value, M2_F32, 1);
    return value;
}

static void put(m2_tensor *tensor, int64_t i, float value)
{
    const size_t size = m2_dtype_bytes(tensor->dtype);
    m2_convert(&value, M2_F32, (char *)tensor->data + (size_t)i * size, tensor->dtype, 1);
}

static void fill(m2_tensor *tensor, uint64_t seed, float low, float high)
{
    m2_test_random random = { seed };
    for (int64_t i = 0; i < m2_tensor_count(tensor); i++)
        put(tensor, i, m2_test_random_uniform(&random, low, high));
}

/* The norm against f64, all channel counts around the 16 lanes.  Catches a mean over the padded
 * width, an eps outside the root, lanes lost at the end of a row. */
static void rms_act_is_the_norm_then_the_activation(void **state)
{
    test_env *env = *state;
    static const int widths[] = { 1, 3, 15, 16, 17, 24, 48, 100, 512, 1030 };
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++) {
        m2_arena_reset(&env->arena);
        const int64_t n = 5, dim = widths[w];
        m2_tensor x = m2_tensor_make(&env->arena, M2_F32, n, dim);
        m2_tensor y = m2_tensor_make(&env->arena, M2_F32, n, dim);
        fill(&x, (uint64_t)dim, -1e-4f, 1e-4f); /* eps shows */
        env->ops.rms_act(
            &env->ops,
            &(m2_rms_act_args){ .x = &x, .eps = 1e-8f, .activation = M2_ACT_SILU, .y = &y });
        for (int64_t r = 0; r < n; r++) {
            double sum = 0;
            for (int64_t i = 0; i < dim; i++) sum += pow(get(&x, r * dim + i), 2);
            const double scale = 1 / sqrt(sum / (double)dim + (double)1e-8f);
            for (int64_t i = 0; i < dim; i++) {
                const double normed = get(&x, r * dim + i) * scale;
                check_near(get(&y, r * dim + i), normed / (1 + exp(-normed)), 1e-6, /* 8 ulp of 2 */
                           "width %d, value %d", (int)dim, (int)i);
            }
        }
    }
}

/* In bf16 the norm is rounded before the activation sees it.  Catches one rounding too few, which
 * no error rule at bf16 would show. */
static void rms_act_rounds_between_norm_and_activation(void **state)
{
    test_env *env = *state;
    m2_tensor x = m2_tensor_make(&env->arena, M2_BF16, 64, 24);
    m2_tensor normed = m2_tensor_make(&env->arena, M2_BF16, 64, 24);
    m2_tensor y = m2_tensor_make(&env->arena, M2_BF16, 64, 24);
    fill(&x, 3, -2, 2);
    env->ops.rms_act(
        &env->ops,
        &(m2_rms_act_args){ .x = &x, .eps = 1e-6f, .activation = M2_ACT_NONE, .y = &normed });
    env->ops.rms_act(
        &env->ops, &(m2_rms_act_args){ .x = &x, .eps = 1e-6f, .activation = M2_ACT_SILU, .y = &y });
    for (int64_t i = 0; i < 64 * 24; i++) {
        const double v = get(&normed, i);
        const float exact = (float)(v / (1 + exp(-v)));
        /* Half a unit of bf16's last place, and the error of exp. */
        check_near(get(&y, i), exact, fabsf(exact) * 0x1.01p-8f, "value %d", (int)i);
    }
    env->ops.rms_act(
        &env->ops, &(m2_rms_act_args){
                       .x = &x, .eps = 1e-6f, .activation = M2_ACT_RELU, .y = &x }); /* in place */
    for (int64_t i = 0; i < 64 * 24; i++)
        assert_true(get(&x, i) == (get(&normed, i) > 0 ? get(&normed, i) : 0));
}

static void upsample_repeats_in_h_and_w_only(void **state)
{
    test_env *env = *state;
    const int64_t t = 2, h = 3, w = 2, c = 5, fh = 2, fw = 3;
    m2_tensor x = m2_tensor_make(&env->arena, M2_F32, t, h, w, c);
    m2_tensor y = m2_tensor_make(&env->arena, M2_F32, t, h * fh, w * fw, c);
    for (int64_t i = 0; i < m2_tensor_count(&x); i++) put(&x, i, (float)i);
    env->ops.upsample_nearest(
        &env->ops, &(m2_upsample_nearest_args){ .x = &x, .fh = (int)fh, .fw = (int)fw, .y = &y });
    for (int64_t i = 0; i < m2_tensor_count(&y); i++) {
        const int64_t ch = i % c, px = i / c % (w * fw), py = i / (c * w * fw) % (h * fh);
        const int64_t frame = i / (c * w * fw * h * fh);
        assert_true(get(&y, i) == (float)(((frame * h + py / fh) * w + px / fw) * c + ch));
    }
}

/* The split index is the outer of the doubled channels; the first chunk loses frame 0. */
static void split_time_takes_the_outer_half_and_drops_frames(void **state)
{
    test_env *env = *state;
    const int64_t t = 3, h = 2, w = 2, c = 3;
    m2_tensor x = m2_tensor_make(&env->arena, M2_BF16, t, h, w, 2 * c);
    for (int64_t i = 0; i < m2_tensor_count(&x); i++) put(&x, i, (float)i);
    for (int n_drop = 0; n_drop <= 1; n_drop++) {
        m2_tensor y = m2_tensor_make(&env->arena, M2_BF16, 2 * t - n_drop, h, w, c);
        env->ops.split_time(&env->ops, &(m2_split_time_args){ .x = &x, .n_drop = n_drop, .y = &y });
        for (int64_t i = 0; i < m2_tensor_count(&y); i++) {
            const int64_t ch = i % c, pixel = i / c % (h * w), frame = i / (c * h * w) + n_drop;
            const int64_t from = (frame / 2 * h * w + pixel) * 2 * c + frame % 2 * c + ch;
            assert_true(get(&y, i) == (float)from);
        }
    }
}

/* Unpatchify has the column parity outside, pixel shuffle the row parity: one-hot channels. */
static void pixel_shuffle_puts_each_channel_at_its_place(void **state)
{
    test_env *env = *state;
    for (int column_outer = 0; column_outer <= 1; column_outer++) {
        for (int64_t hot = 0; hot < 12; hot++) {
            m2_tensor x = m2_tensor_make(&env->arena, M2_F32, 1, 1, 1, 12);
            m2_tensor y = m2_tensor_make(&env->arena, M2_F32, 1, 2, 2, 3);
            for (int64_t i = 0; i < 12; i++) put(&x, i, i == hot);
            env->ops.pixel_shuffle(&env->ops, &(m2_pixel_shuffle_args){
                                                  .x = &x, .column_outer = column_outer, .y = &y });
            const int64_t colour = hot / 4, phase = hot % 4;
            const int64_t row = column_outer ? phase % 2 : phase / 2;
            const int64_t column = column_outer ? phase / 2 : phase % 2;
            for (int64_t i = 0; i < 12; i++)
                assert_true(get(&y, i) == (i == (row * 2 + column) * 3 + colour));
        }
    }
}

/* Transposes to channels last, starts at t_begin, repeats the last frame past the end, divides by
 * the rounded reciprocal, and rounds z before. */
static void denormalise_windows_and_repeats_the_last_frame(void **state)
{
    test_env *env = *state;
    const int64_t c = 3, t_in = 4, h = 2, w = 3;
    m2_tensor z = m2_tensor_make(&env->arena, M2_F32, c, t_in, h, w);
    m2_tensor mean = m2_tensor_make(&env->arena, M2_F32, c);
    m2_tensor std = m2_tensor_make(&env->arena, M2_F32, c);
    fill(&z, 5, -3, 3);
    fill(&mean, 6, -1, 1);
    fill(&std, 7, 0.3f, 2);
    for (int is_bf16 = 0; is_bf16 <= 1; is_bf16++) {
        m2_tensor y = m2_tensor_make(&env->arena, is_bf16 ? M2_BF16 : M2_F32, 5, h, w, c);
        env->ops.denormalise(
            &env->ops,
            &(m2_denormalise_args){ .z = &z, .mean = &mean, .std = &std, .t_begin = 2, .y = &y });
        for (int64_t i = 0; i < m2_tensor_count(&y); i++) {
            const int64_t ch = i % c, pixel = i / c % (h * w), frame = 2 + i / (c * h * w);
            const float value =
                get(&z, (ch * t_in + (frame < t_in ? frame : t_in - 1)) * h * w + pixel);
            const float rounded = is_bf16 ? m2_round_bf16(value) : value;
            const float exact = rounded / (1.0f / get(&std, ch)) + get(&mean, ch);
            assert_true(get(&y, i) == (is_bf16 ? m2_round_bf16(exact) : exact));
        }
    }
}

/* 0.99999 is 254, not 255: values are truncated; all beyond the range is clamped. */
static void frames_are_truncated_and_clamped(void **state)
{
    test_env *env = *state;
    static const float in[] = { -1, 1, 0, 0.99999f, 1.5f, -7, INFINITY, -INFINITY, NAN, -0.0f };
    static const uint8_t out[] = { 0, 255, 127, 254, 255, 0, 255, 0, 0, 127 };
    m2_tensor x = m2_tensor_make(&env->arena, M2_F32, 25);
    m2_tensor y = m2_tensor_make(&env->arena, M2_U8, 25);
    for (int i = 0; i < 25; i++) put(&x, i, in[i % 10]);
    for (int isa = M2_ISA_REF; isa <= (int)m2_isa_detect(); isa++) {
        m2_ops ops;
        check_ok(m2_ops_init_cpu(&ops, NULL, (m2_isa)isa));
        ops.frames_u8(&ops, &(m2_frames_u8_args){ .x = &x, .y = &y });
        for (int i = 0; i < 25; i++) assert_int_equal(((const uint8_t *)y.data)[i], out[i % 10]);
    }
}

/* alpha and beta are logarithms; at 0 the function is x + sin^2 x, as 1 + 1e-9 rounds to 1. */
static void snake_follows_its_definition(void **state)
{
    test_env *env = *state;
    const int64_t n = 300, c = 5;
    m2_tensor x = m2_tensor_make(&env->arena, M2_F32, n, c);
    m2_tensor y = m2_tensor_make(&env->arena, M2_F32, n, c);
    m2_tensor alpha = m2_tensor_make(&env->arena, M2_F32, c);
    m2_tensor beta = m2_tensor_make(&env->arena, M2_F32, c);
    fill(&x, 8, -4, 4);
    fill(&alpha, 9, -2, 2);
    fill(&beta, 10, -2, 2);
    put(&alpha, 0, 0);
    put(&beta, 0, 0);
    env->ops.snake(&env->ops, &(m2_snake_args){ .x = &x, .alpha = &alpha, .beta = &beta, .y = &y });
    for (int64_t i = 0; i < n * c; i++) {
        const double v = get(&x, i), a = exp(get(&alpha, i % c)), b = exp(get(&beta, i % c));
        /* The angle may be 30: half a unit of its last place is 1e-6, times 1 / b <= 7.4. */
        check_near(get(&y, i), v + pow(sin(a * v), 2) / (b + 1e-9), 1.5e-5, "value %d", (int)i);
    }
    for (int64_t i = 0; i < n * c; i += c) {
        const double v = get(&x, i);
        check_near(get(&y, i), v + pow(sin(v), 2), 6e-7, "sample %d", (int)(i / c));
    }
}

/* ---- every version, every number of threads: the same bits ---- */

/* Run each operator on odd shapes; all results go, one after another, to `out`. */
static size_t run_all(const m2_ops *ops, m2_arena *arena, unsigned char *out, int64_t channels,
                      m2_dtype dtype)
{
    size_t used = 0;
    m2_arena_reset(arena);
    const int64_t t = 3, h = 5, w = 7;
    m2_tensor x = m2_tensor_make(arena, dtype, t, h, w, channels);
    fill(&x, 11, -3, 3);
    put(&x, 0, 0);
    put(&x, 1 % channels, 1e-30f);
    m2_tensor y = m2_tensor_make(arena, dtype, t, h, w, channels);
#define KEEP(tensor)                                                                               \
    do {                                                                                           \
        memcpy(out + used, (tensor).data, m2_tensor_bytes(&(tensor)));                             \
        used += m2_tensor_bytes(&(tensor));                                                        \
    } while (0)
    for (int a = M2_ACT_NONE; a <= M2_ACT_TANH; a++) {
        ops->rms_act(ops, &(m2_rms_act_args){
                              .x = &x, .eps = 1e-6f, .activation = (m2_activation)a, .y = &y });
        KEEP(y);
    }
    m2_tensor up = m2_tensor_make(arena, dtype, t, h * 2, w * 2, channels);
    ops->upsample_nearest(ops, &(m2_upsample_nearest_args){ .x = &x, .fh = 2, .fw = 2, .y = &up });
    KEEP(up);
    if (channels % 2 == 0) {
        m2_tensor split = m2_tensor_make(arena, dtype, 2 * t - 1, h, w, channels / 2);
        ops->split_time(ops, &(m2_split_time_args){ .x = &x, .n_drop = 1, .y = &split });
        KEEP(split);
    }
    if (channels % 4 == 0) {
        m2_tensor shuffled = m2_tensor_make(arena, dtype, t, h * 2, w * 2, channels / 4);
        for (int outer = 0; outer <= 1; outer++) {
            ops->pixel_shuffle(
                ops, &(m2_pixel_shuffle_args){ .x = &x, .column_outer = outer, .y = &shuffled });
            KEEP(shuffled);
        }
    }
    m2_tensor z = m2_tensor_make(arena, M2_F32, channels, t, h, w);
    m2_tensor mean = m2_tensor_make(arena, M2_F32, channels);
    m2_tensor std = m2_tensor_make(arena, M2_F32, channels);
    fill(&z, 12, -3, 3);
    fill(&mean, 13, -1, 1);
    fill(&std, 14, 0.3f, 2);
    ops->denormalise(
        ops, &(m2_denormalise_args){ .z = &z, .mean = &mean, .std = &std, .t_begin = 1, .y = &y });
    KEEP(y);
    m2_tensor frames = m2_tensor_make(arena, M2_U8, t, h, w, channels);
    ops->frames_u8(ops, &(m2_frames_u8_args){ .x = &x, .y = &frames });
    KEEP(frames);
    m2_tensor samples = m2_tensor_over(z.data, M2_F32, t * h * w, channels);
    m2_tensor waved = m2_tensor_make(arena, M2_F32, t * h * w, channels);
    put(&samples, 3, 3e5f); /* beyond the fast reduction of angles */
    put(&samples, 4, 1e-40f);
    ops->snake(ops, &(m2_snake_args){ .x = &samples, .alpha = &mean, .beta = &std, .y = &waved });
    KEEP(waved);
#undef KEEP
    return used;
}

static void every_instruction_set_and_thread_count_gives_the_same_bits(void **state)
{
    test_env *env = *state;
    unsigned char *expected = malloc((size_t)8 << 20), *ours = malloc((size_t)8 << 20);
    assert_true(expected && ours);
    static const int widths[] = { 1, 2, 3, 4, 12, 16, 24, 28, 32, 40, 64, 100, 130 };
    for (int isa = M2_ISA_REF; isa <= (int)m2_isa_detect(); isa++) {
        for (int n_threads = 1; n_threads <= 3; n_threads += 2) {
            m2_pool *pool = NULL;
            m2_ops ops;
            check_ok(m2_pool_create(n_threads, &pool));
            check_ok(m2_ops_init_cpu(&ops, pool, (m2_isa)isa));
            for (size_t i = 0; i < 2 * sizeof widths / sizeof widths[0]; i++) {
                const m2_dtype dtype = i % 2 ? M2_BF16 : M2_F32;
                const size_t bytes =
                    run_all(&env->ops, &env->arena, expected, widths[i / 2], dtype);
                assert_int_equal(run_all(&ops, &env->arena, ours, widths[i / 2], dtype), bytes);
                for (size_t b = 0; b < bytes; b++)
                    if (ours[b] != expected[b])
                        fail_msg("%s, %d threads, %d channels of %s: byte %zu differs",
                                 m2_isa_name((m2_isa)isa), n_threads, widths[i / 2],
                                 m2_dtype_name(dtype), b);
            }
            m2_pool_destroy(pool);
        }
    }
    free(expected);
    free(ours);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rms_act_is_the_norm_then_the_activation),
        cmocka_unit_test(rms_act_rounds_between_norm_and_activation),
        cmocka_unit_test(upsample_repeats_in_h_and_w_only),
        cmocka_unit_test(split_time_takes_the_outer_half_and_drops_frames),
        cmocka_unit_test(pixel_shuffle_puts_each_channel_at_its_place),
        cmocka_unit_test(denormalise_windows_and_repeats_the_last_frame),
        cmocka_unit_test(frames_are_truncated_and_clamped),
        cmocka_unit_test(snake_follows_its_definition),
        cmocka_unit_test(every_instruction_set_and_thread_count_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
