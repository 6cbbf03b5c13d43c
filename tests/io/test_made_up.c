/* Checkpoints without a file: found and read as any other, with random values. */
#include "support/check.h"

#include "io/checkpoint_made_up.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static m2_checkpoint *make(uint64_t seed)
{
    m2_checkpoint *checkpoint = NULL;
    check_ok(m2_made_up_create("made-up", &checkpoint));
    check_ok(m2_made_up_add(checkpoint, "b.weight", M2_BF16, 2, (int64_t[]){ 300, 70 }));
    check_ok(m2_made_up_add(checkpoint, "a.weight", M2_F32, 3, (int64_t[]){ 40, 30, 3 }));
    check_ok(m2_made_up_add(checkpoint, "a.twin", M2_F32, 3, (int64_t[]){ 40, 30, 3 }));
    check_ok(m2_made_up_add(checkpoint, "empty", M2_F32, 1, (int64_t[]){ 0 }));
    check_ok(m2_made_up_add(checkpoint, "scalar", M2_F32, 0, NULL));
    check_ok(m2_made_up_finish(checkpoint, 0.02, seed));
    return checkpoint;
}

static void check_values(const m2_ckpt_tensor *tensor)
{
    double sum = 0, squares = 0;
    float *values = malloc((size_t)tensor->count * sizeof *values);
    m2_checkpoint_read(tensor, M2_F32, values);
    for (int64_t i = 0; i < tensor->count; i++) {
        sum += values[i];
        squares += (double)values[i] * values[i];
    }
    /* 3,600 values at least: the deviation of their mean is 1/60, of their rms 1/85 of 0.02 */
    check_near(sum / (double)tensor->count, 0, 0.002, "mean of %s", tensor->name);
    check_near(sqrt(squares / (double)tensor->count), 0.02, 0.002, "rms of %s", tensor->name);
    free(values);
}

/* Catches values that are all the same, of another scale, or read beside the shared block. */
static void tensors_are_found_by_name_and_hold_normals(void **state)
{
    (void)state;
    m2_checkpoint *checkpoint = make(1);
    assert_int_equal(m2_checkpoint_n_tensors(checkpoint), 5);
    assert_string_equal(m2_checkpoint_path(checkpoint), "made-up");
    assert_null(m2_checkpoint_find(checkpoint, "c.weight"));
    assert_true(m2_checkpoint_has_prefix(checkpoint, "a."));
    const m2_ckpt_tensor *a = m2_checkpoint_find(checkpoint, "a.weight");
    const m2_ckpt_tensor *b = m2_checkpoint_find(checkpoint, "b.weight");
    const m2_ckpt_tensor *twin = m2_checkpoint_find(checkpoint, "a.twin");
    assert_true(a && b && twin && m2_checkpoint_find(checkpoint, "scalar"));
    assert_int_equal(m2_checkpoint_find(checkpoint, "empty")->count, 0);
    assert_int_equal(a->count, 3600);
    assert_int_equal(b->count, 21000);
    assert_true(b->dtype == M2_BF16 && b->data && a->data);
    check_values(a);
    check_values(b);
    check_values(twin);
    assert_memory_not_equal(a->data, twin->data, 3600 * sizeof(float));
    m2_checkpoint_close(checkpoint);
}

/* The last value of every tensor lies in the block, wherever the tensor begins.  Catches a block of the
 * largest tensor alone, without room for the places where tensors begin (the sanitizers judge). */
static void a_thousand_tensors_end_inside_the_block(void **state)
{
    (void)state;
    m2_checkpoint *checkpoint = NULL;
    check_ok(m2_made_up_create("made-up", &checkpoint));
    for (int i = 0; i < 1000; i++) {
        char name[32];
        snprintf(name, sizeof name, "layers.%d", i);
        check_ok(m2_made_up_add(checkpoint, name, M2_BF16, 1, (int64_t[]){ 2000 }));
    }
    check_ok(m2_made_up_finish(checkpoint, 1, 2));
    int n_zero = 0;
    for (int i = 0; i < 1000; i++) {
        const m2_ckpt_tensor *tensor = m2_checkpoint_at(checkpoint, i);
        n_zero += m2_bf16_to_f32(((const m2_bf16 *)tensor->data)[1999]) == 0;
    }
    assert_int_equal(n_zero, 0);
    m2_checkpoint_close(checkpoint);
}

static void the_seed_decides(void **state)
{
    (void)state;
    m2_checkpoint *one = make(1), *again = make(1), *other = make(2);
    const size_t bytes = 3600 * sizeof(float);
    const void *values = m2_checkpoint_find(one, "a.weight")->data;
    assert_memory_equal(values, m2_checkpoint_find(again, "a.weight")->data, bytes);
    assert_memory_not_equal(values, m2_checkpoint_find(other, "a.weight")->data, bytes);
    m2_checkpoint_close(one);
    m2_checkpoint_close(again);
    m2_checkpoint_close(other);
}

static void what_cannot_be_made_up_is_refused(void **state)
{
    (void)state;
    m2_checkpoint *checkpoint = NULL;
    check_ok(m2_made_up_create("made-up", &checkpoint));
    check_fails(m2_made_up_add(checkpoint, "ids", M2_I32, 1, (int64_t[]){ 4 }), M2_ERR_UNSUPPORTED,
                "'ids' is I32");
    check_fails(m2_made_up_add(checkpoint, "w", M2_F32, 1, (int64_t[]){ -4 }), M2_ERR_ARG,
                "below 0");
    check_fails(m2_made_up_add(checkpoint, "w", M2_F32, 2, (int64_t[]){ INT64_MAX, 2 }), M2_ERR_ARG,
                "too large");
    check_ok(m2_made_up_add(checkpoint, "w", M2_F32, 1, (int64_t[]){ 4 }));
    check_ok(m2_made_up_add(checkpoint, "w", M2_F32, 1, (int64_t[]){ 4 }));
    check_fails(m2_made_up_finish(checkpoint, 1, 1), M2_ERR_FORMAT, "two tensors are named 'w'");
    m2_checkpoint_close(checkpoint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_found_by_name_and_hold_normals),
        cmocka_unit_test(a_thousand_tensors_end_inside_the_block),
        cmocka_unit_test(the_seed_decides),
        cmocka_unit_test(what_cannot_be_made_up_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
