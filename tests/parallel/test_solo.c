#include "support/check.h"

#include "parallel/group.h"

#include <string.h>

/* One rank: what everybody has is what I have.  Catches a collective that leaves its output as it
 * was, copies too little, or changes its input. */
static void collectives_of_one_rank_are_copies(void **state)
{
    (void)state;
    m2_group group;
    m2_group_init_solo(&group, "world");
    assert_string_equal(group.name, "world");
    assert_int_equal(group.rank, 0);
    assert_int_equal(group.size, 1);
    char mine[9] = "abcdefgh", all[9] = "--------";
    check_ok(group.all_gather(&group, mine, 8, all));
    assert_string_equal(all, "abcdefgh");
    memset(all, '-', 8);
    check_ok(group.all_to_all(&group, mine, 5, all));
    assert_string_equal(all, "abcde---");
    check_ok(group.broadcast(&group, mine, 8, 0));
    assert_string_equal(mine, "abcdefgh");
    check_ok(group.barrier(&group));
    /* In place, and of nothing. */
    check_ok(group.all_gather(&group, mine, 8, mine));
    check_ok(group.all_to_all(&group, mine, 8, mine));
    check_ok(group.all_gather(&group, NULL, 0, NULL));
    assert_string_equal(mine, "abcdefgh");
    group.destroy(&group);
}

/* The worst status of all ranks is mine. */
static void agreement_with_oneself_keeps_the_status(void **state)
{
    (void)state;
    m2_group group;
    m2_group_init_solo(&group, "sp");
    for (int status = M2_OK; status <= M2_ERR_INTERNAL; status++)
        assert_int_equal(m2_group_agree(&group, (m2_status)status), status);
    group.destroy(&group);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_of_one_rank_are_copies),
        cmocka_unit_test(agreement_with_oneself_keeps_the_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
