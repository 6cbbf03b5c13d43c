#include "support/check.h"
#include "support/files.h"

#include "pipeline/save.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

/* A text as short as the manifest meets the full disk when it is closed: that is what must be said, not
 * what failed last before.  A limit on the size of files stands for the disk. */
static void a_manifest_that_cannot_be_written_is_reported_with_its_own_reason(void **state)
{
    (void)state;
    char *dir = m2_test_make_dir(), *path = m2_test_join(dir, "manifest.json");
    struct rlimit before, little;
    m2_save *save = NULL;
    check_ok(m2_save_open(dir, &save));
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    little = before;
    little.rlim_cur = 16;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    errno = ENOENT;
    const m2_status status = m2_save_finish(save, "ref", "none");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    check_fails(status, M2_ERR_IO, "manifest.json: cannot be written: File too large");
    assert_int_not_equal(remove(path), 0);
    check_ok(m2_save_finish(save, "ref", "none"));
    assert_int_equal(remove(path), 0);
    m2_save_close(save);
    free(path);
    m2_test_remove_tree(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_manifest_that_cannot_be_written_is_reported_with_its_own_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
