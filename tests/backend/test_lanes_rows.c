#include "backend/lanes_case.h"

/* Catches a row's tail that is summed in other lanes, weights of the wrong group, pairs of a
 * rotation that meet at an odd place, an in-place write before all is read. */
static void row_operators_have_the_scalar_bits(void **state)
{
    (void)state;
    check_operator("rms_norm", draw_rms_norm, 40);
    check_operator("mhc_coefficients", draw_mhc_coefficients, 30);
    check_operator("mhc_read", draw_mhc_read, 20);
    check_operator("mhc_write", draw_mhc_write, 20);
    check_operator("qk_norm_rope", draw_qk_norm_rope, 40);
    check_operator("attention_gate", draw_attention_gate, 20);
}

/* Catches functions of sixteen lanes that differ from core/fmath.h, above all at their ends. */
static void element_wise_operators_have_the_scalar_bits(void **state)
{
    (void)state;
    check_operator("swiglu7", draw_swiglu7, 30);
    check_operator("add", draw_add, 30);
    check_operator("activate", draw_activate, 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(row_operators_have_the_scalar_bits),
        cmocka_unit_test(element_wise_operators_have_the_scalar_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
