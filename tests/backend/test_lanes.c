#include "backend/lanes_case.h"

/* Catches another order of sums, a tail that is not padded, a tile that reaches over the end, a
 * worker that uses what another left in its scratch. */
static void linear_has_the_scalar_bits(void **state)
{
    (void)state;
    check_operator("linear", draw_linear, 60);
}

/* Catches a block that rows see in part, a head of the wrong group, sums of rounded P. */
static void attention_has_the_scalar_bits(void **state)
{
    (void)state;
    check_operator("attention", draw_attention, 40);
}

/* Catches a tap outside that is left out of the sums, and frames that do not repeat. */
static void convolutions_have_the_scalar_bits(void **state)
{
    (void)state;
    check_operator("conv", draw_conv, 40);
    check_operator("conv_transpose", draw_conv_transpose, 30);
}

/* Catches experts without tokens, one expert with all of them, widths that fill no block. */
static void experts_have_the_scalar_bits(void **state)
{
    (void)state;
    check_operator("moe_logits", draw_moe_logits, 30);
    check_operator("moe_ffn", draw_moe_ffn, 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_has_the_scalar_bits),
        cmocka_unit_test(attention_has_the_scalar_bits),
        cmocka_unit_test(convolutions_have_the_scalar_bits),
        cmocka_unit_test(experts_have_the_scalar_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
