#include "io/checkpoint.h"
#include "media/resize.h"
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The reference's own bytes, also where only the order of the f32 sum decides them.  Catches another
 * order, rounding in place of truncation, aligned corners, antialiasing. */
static void gives_the_bytes_of_the_reference(void **state)
{
    (void)state;
    m2_checkpoint *file = NULL;
    check_ok(m2_checkpoint_open(m2_test_path("data/video/resize.safetensors"), &file));
    int n_cases = 0;
    for (int64_t i = 0; i < m2_checkpoint_n_tensors(file); i++) {
        const m2_ckpt_tensor *in = m2_checkpoint_at(file, i);
        const char *end = strstr(in->name, ".in");
        if (!end) continue;
        char name[64];
        snprintf(name, sizeof name, "%.*s.out", (int)(end - in->name), in->name);
        const m2_ckpt_tensor *out = m2_checkpoint_find(file, name);
        assert_non_null(out);
        uint8_t *ours = malloc((size_t)out->count);
        check_ok(m2_resize_frames(NULL, in->data, in->shape[0], in->shape[2], in->shape[1], ours,
                                  out->shape[2], out->shape[1]));
        assert_memory_equal(ours, out->data, (size_t)out->count);
        free(ours);
        n_cases++;
    }
    assert_int_equal(n_cases, 3);
    m2_checkpoint_close(file);
}

static uint8_t *make_frames(int64_t n, uint64_t seed)
{
    m2_test_random random = { seed };
    uint8_t *frames = malloc((size_t)n);
    for (int64_t i = 0; i < n; i++) frames[i] = (uint8_t)m2_test_random_u64(&random);
    return frames;
}

/* level / 255 * 255 in f32 may fall just under the level; truncated it would darken the picture. */
static void same_size_changes_nothing(void **state)
{
    (void)state;
    uint8_t in[3 * 256], out[sizeof in];
    for (int i = 0; i < 3 * 256; i++) in[i] = (uint8_t)(i / 3);
    check_ok(m2_resize_frames(NULL, in, 1, 256, 1, out, 256, 1));
    assert_memory_equal(in, out, sizeof in);
}

/* Twice as wide: the quarter points between neighbours, the edges repeated. */
static void doubling_takes_quarters(void **state)
{
    (void)state;
    const uint8_t in[2 * 3] = { 0, 100, 200, 100, 20, 201 };
    uint8_t out[4 * 3];
    const uint8_t expected[4 * 3] = { 0, 100, 200, 25, 80, 200, 75, 40, 200, 100, 20, 201 };
    check_ok(m2_resize_frames(NULL, in, 1, 2, 1, out, 4, 1));
    for (int i = 0; i < 12; i++) check_near(out[i], expected[i], 1, "value %d", i);
    check_ok(m2_resize_frames(NULL, in, 1, 1, 2, out, 1, 4));
    for (int i = 0; i < 12; i++) check_near(out[i], expected[i], 1, "down, value %d", i);
}

/* Frames must not see each other, and the split of the rows must not show. */
static void bits_do_not_depend_on_threads_or_other_frames(void **state)
{
    (void)state;
    enum { N = 3, H = 37, W = 53, OUT_H = 71, OUT_W = 44 };
    uint8_t *in = make_frames(N * H * W * 3, 5);
    uint8_t *one = malloc(N * OUT_H * OUT_W * 3), *many = malloc(N * OUT_H * OUT_W * 3);
    m2_pool *pool = NULL;
    check_ok(m2_pool_create(4, &pool));
    for (int f = 0; f < N; f++)
        check_ok(m2_resize_frames(NULL, in + f * H * W * 3, 1, W, H, one + f * OUT_H * OUT_W * 3,
                                  OUT_W, OUT_H));
    check_ok(m2_resize_frames(pool, in, N, W, H, many, OUT_W, OUT_H));
    assert_memory_equal(one, many, N * OUT_H * OUT_W * 3);
    m2_pool_destroy(pool);
    free(many);
    free(one);
    free(in);
}

/* Every size from 1 to 9 to every other: nothing beside the picture is read or written (sanitizer)
 * and a picture of one colour stays so. */
static void small_sizes_stay_inside(void **state)
{
    (void)state;
    for (int from = 1; from <= 9; from++)
        for (int to = 1; to <= 9; to++) {
            uint8_t *in = malloc((size_t)(from * (10 - from) * 3));
            uint8_t *out = malloc((size_t)(to * (10 - to) * 3));
            memset(in, 255, (size_t)(from * (10 - from) * 3));
            check_ok(m2_resize_frames(NULL, in, 1, from, 10 - from, out, to, 10 - to));
            /* A sum of weights of one in f32 may be one bit short of it. */
            for (int i = 0; i < to * (10 - to) * 3; i++) assert_in_range(out[i], 254, 255);
            free(in);
            free(out);
        }
}

static void sizes_out_of_range_are_refused(void **state)
{
    (void)state;
    uint8_t pixel[3] = { 0 };
    check_fails(m2_resize_frames(NULL, pixel, 1, 1, 1, pixel, 0, 1), M2_ERR_ARG, "1x1 to 0x1");
    check_fails(m2_resize_frames(NULL, pixel, 1, 1, 1, pixel, 1, 20000), M2_ERR_ARG, "1x20000");
    check_fails(m2_resize_frames(NULL, pixel, 1, -1, 1, pixel, 1, 1), M2_ERR_ARG, "-1x1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_the_bytes_of_the_reference),
        cmocka_unit_test(same_size_changes_nothing),
        cmocka_unit_test(doubling_takes_quarters),
        cmocka_unit_test(bits_do_not_depend_on_threads_or_other_frames),
        cmocka_unit_test(small_sizes_stay_inside),
        cmocka_unit_test(sizes_out_of_range_are_refused),
    };
    return cmocka_run_group_tests_name("resize", tests, NULL, NULL);
}
