#include "support/check.h"

#include "core/tensor.h"

#include <string.h>

/* Catches 32-bit products: the refiner's QKV at 1080p has 3.2e9 elements. */
static void counts_and_bytes_are_64_bit(void **state)
{
    (void)state;
    m2_arena arena;
    m2_arena_init_measuring(&arena, "plan");
    const m2_tensor qkv = m2_tensor_make(&arena, M2_BF16, 514080, 6144);
    assert_int_equal(m2_tensor_count(&qkv), 3158507520);
    assert_int_equal(m2_tensor_bytes(&qkv), 6317015040);
    assert_int_equal(arena.used, 6317015040);
    const m2_tensor tail = m2_tensor_rows(&qkv, 514079, 514080);
    assert_int_equal((uintptr_t)tail.data - (uintptr_t)qkv.data, 6317015040 - 12288);
}

/* A scalar has no dimension and one element; an empty tensor has none. */
static void scalars_and_empty_tensors_have_a_count(void **state)
{
    (void)state;
    float value = 3;
    const m2_tensor scalar = m2_tensor_wrap(&value, M2_F32, 0, NULL);
    assert_int_equal(m2_tensor_count(&scalar), 1);
    assert_int_equal(m2_tensor_bytes(&scalar), 4);
    const m2_tensor empty = m2_tensor_over(NULL, M2_I64, 4, 0, 3);
    assert_int_equal(m2_tensor_count(&empty), 0);
    assert_int_equal(m2_tensor_bytes(&empty), 0);
}

/* Catches an offset in elements instead of bytes, or over the wrong dimensions. */
static void rows_are_a_view_of_the_same_memory(void **state)
{
    (void)state;
    int16_t values[24];
    for (int i = 0; i < 24; i++) values[i] = (int16_t)i;
    const m2_tensor all = m2_tensor_over(values, M2_I16, 4, 2, 3);
    const m2_tensor rows = m2_tensor_rows(&all, 1, 3);
    assert_int_equal(rows.n_dims, 3);
    assert_int_equal(rows.shape[0], 2);
    assert_int_equal(rows.shape[1], 2);
    assert_int_equal(rows.shape[2], 3);
    assert_int_equal(((int16_t *)rows.data)[0], 6);
    const m2_tensor none = m2_tensor_rows(&all, 4, 4);
    assert_int_equal(m2_tensor_count(&none), 0);
}

/* Catches an overrun by a short buffer. */
static void a_shape_reads_well_and_fits_any_buffer(void **state)
{
    (void)state;
    char text[64];
    const m2_tensor tensor = m2_tensor_over(NULL, M2_F32, 3072, 256, 1280);
    const m2_tensor scalar = m2_tensor_wrap(NULL, M2_F32, 0, NULL);
    assert_string_equal(m2_tensor_shape_text(&tensor, text, sizeof text), "[3072, 256, 1280]");
    assert_string_equal(m2_tensor_shape_text(&scalar, text, sizeof text), "[]");
    for (size_t bytes = 1; bytes <= 18; bytes++) {
        memset(text, '#', sizeof text);
        m2_tensor_shape_text(&tensor, text, bytes);
        assert_true(strlen(text) < bytes);
        assert_int_equal(text[bytes], '#');
        assert_memory_equal(text, "[3072, 256, 1280]", strlen(text));
    }
}

/* Catches a type without a size, or two with one name. */
static void every_type_has_a_size_and_a_name(void **state)
{
    (void)state;
    for (int i = 0; i < M2_DTYPE_COUNT; i++) {
        m2_dtype parsed = M2_DTYPE_COUNT;
        assert_in_range(m2_dtype_bytes((m2_dtype)i), 1, 8);
        assert_int_equal(m2_dtype_parse(m2_dtype_name((m2_dtype)i), &parsed), 1);
        assert_int_equal(parsed, i);
    }
    m2_dtype parsed = M2_I8;
    assert_int_equal(m2_dtype_parse("F128", &parsed), 0);
    assert_int_equal(m2_dtype_parse("", &parsed), 0);
    assert_int_equal(parsed, M2_I8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_and_bytes_are_64_bit),
        cmocka_unit_test(scalars_and_empty_tensors_have_a_count),
        cmocka_unit_test(rows_are_a_view_of_the_same_memory),
        cmocka_unit_test(a_shape_reads_well_and_fits_any_buffer),
        cmocka_unit_test(every_type_has_a_size_and_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
