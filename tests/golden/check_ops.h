/* check_ops.h - what the checks of single operations share. */
#ifndef M2_TESTS_GOLDEN_CHECK_OPS_H
#define M2_TESTS_GOLDEN_CHECK_OPS_H

#include "recorded_errors.h"

#define EPS 1e-6f /* of every norm */

/* Entry "<idx>.<name>". */
m2_tensor golden_ops_entry(golden_run *run, golden_file *file, int idx, const char *name,
                           m2_dtype dtype);
/* Zeroed memory that lives until the run ends. */
m2_tensor golden_ops_make(golden_run *run, m2_dtype dtype, int n_dims, const int64_t *shape);
#define MAKE(run, dtype, ...)                                                                      \
    golden_ops_make((run), (dtype), M2_N_DIMS_(__VA_ARGS__), M2_DIMS_(__VA_ARGS__))
/* Judge against "<idx>.<reference>" and "<idx>.<truth>", whose error the report names as `tensor` of
 * case "<kind>/<idx>". */
void golden_ops_judge(golden_run *run, golden_file *file, const json_t *report, const char *kind,
                      int idx, const m2_tensor *ours, const char *reference, const char *truth,
                      const char *tensor);
/* Row counts of the modalities as groups; `storage` is filled and given back. */
const m2_groups *golden_ops_groups(golden_run *run, const m2_tensor *sizes, int64_t n_rows,
                                   m2_groups *storage);

void golden_ops_moe(golden_run *run, golden_file *file, const json_t *report);
void golden_ops_moe_layer(golden_run *run, golden_file *file, const json_t *report);
void golden_ops_router(golden_run *run, golden_file *file, const json_t *report);

#endif
