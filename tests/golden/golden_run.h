/* golden_run.h - the state of one golden_check run (golden.h is what components use). */
#ifndef M2_TESTS_GOLDEN_GOLDEN_RUN_H
#define M2_TESTS_GOLDEN_GOLDEN_RUN_H

#include "golden.h"

struct golden_run {
    m2_ops ops;
    m2_pool *pool;
    int is_json;
    const char *component; /* now being checked                   */
    int n_passed, n_failed, n_skipped;
    void **blocks; /* freed at the end of the run         */
    int n_blocks, room;
};

void golden_run_free(golden_run *run);

#endif
