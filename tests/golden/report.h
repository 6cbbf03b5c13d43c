/* report.h - the errors that the generator of golden data wrote down beside it (report.json).
 *
 * The error rule compares two errors against one truth, so a damaged truth would excuse both.  The
 * reference's error as found must be the one that was written down. */
#ifndef M2_TESTS_GOLDEN_REPORT_H
#define M2_TESTS_GOLDEN_REPORT_H

#include "golden.h"

/* report.json of a component's folder, NULL if it has none; the caller decref()s it. */
json_t *golden_report(golden_run *run, const char *dir);
/* A failure if entries `reference` and `truth` are not as far apart as the report says for `tensor`
 * of `case_name`; nothing if it says nothing. */
void golden_report_check(golden_run *run, golden_file *file, const json_t *report,
                         const char *case_name, const char *tensor, const char *reference,
                         const char *truth);

#endif
