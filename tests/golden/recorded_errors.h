/* recorded_errors.h - a folder's report.json against the data beside it.
 *
 * The report says how far each recorded tensor is from its truth.  A recorded tensor that was
 * damaged would loosen the very limit that it is judged by; its error then differs from the report's. */
#ifndef M2_TESTS_GOLDEN_RECORDED_ERRORS_H
#define M2_TESTS_GOLDEN_RECORDED_ERRORS_H

#include "golden.h"

/* The report beside `dir`'s cases, or NULL if there is none; json_decref() it. */
json_t *recorded_errors_load(golden_run *run, const char *dir);

/* A failure unless the report's row for `name` (the row's "case" up to its first space) and `tensor`
 * agrees with the error of entry `reference` against entry `truth`.  Nothing without such a row. */
void recorded_errors_check(golden_run *run, const json_t *report, golden_file *file,
                           const char *name, const char *tensor, const char *reference,
                           const char *truth);

/* The same for n values at hand and their truth. */
void recorded_errors_compare(golden_run *run, const json_t *report, const char *name,
                             const char *tensor, const double *x, const double *truth, int64_t n);

#endif
