#include "recorded_errors.h"

#include <math.h>
#include <string.h>

/* Errors were taken before the truths were rounded to f32 for the file. */
#define TOLERANCE      0.2
#define TRUTH_ROUNDING 6e-8

json_t *recorded_errors_load(golden_run *run, const char *dir)
{
    const char *path = golden_format(run, "%s/report.json", dir);
    return golden_is_file(path) ? golden_json(run, path) : NULL;
}

static const json_t *find_row(const json_t *report, const char *name, const char *tensor)
{
    size_t i;
    const json_t *row;
    json_array_foreach(json_object_get(report, "errors_ref_vs_truth"), i, row)
    {
        const char *row_case = json_string_value(json_object_get(row, "case"));
        const char *row_tensor = json_string_value(json_object_get(row, "tensor"));
        if (!row_case || !row_tensor || strcmp(row_tensor, tensor) != 0) continue;
        const size_t n = strcspn(row_case, " ");
        if (n == strlen(name) && strncmp(row_case, name, n) == 0) return row;
    }
    return NULL;
}

/* Against zero without x. */
static double largest_difference(const double *x, const double *truth, int64_t n)
{
    double largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs((x ? x[i] : 0) - truth[i]));
    return largest;
}

static void check_one(golden_run *run, const json_t *row, const char *key, const char *name,
                      double found, double scale)
{
    const double wanted = json_number_value(json_object_get(row, key));
    if (!(fabs(found - wanted) <= TOLERANCE * wanted + TRUTH_ROUNDING * scale))
        golden_result(run, 0, name,
                      "its error (%s) is %.3e, report.json says %.3e: the data are damaged", key,
                      found, wanted);
}

void recorded_errors_compare(golden_run *run, const json_t *report, const char *name,
                             const char *tensor, const double *x, const double *truth, int64_t n)
{
    const json_t *row = find_row(report, name, tensor);
    if (!row) return;
    check_one(run, row, "rel", golden_format(run, "%s %s", name, tensor),
              golden_relative_error(x, M2_F64, truth, M2_F64, n), 1);
    double largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(x[i] - truth[i]));
    check_one(run, row, "max", golden_format(run, "%s %s", name, tensor), largest,
              largest_difference(NULL, truth, n));
}

void recorded_errors_check(golden_run *run, const json_t *report, golden_file *file,
                           const char *name, const char *tensor, const char *reference,
                           const char *truth)
{
    const json_t *row = find_row(report, name, tensor);
    if (!row || !golden_has(file, reference) || !golden_has(file, truth)) return;
    const m2_tensor x = golden_tensor(file, reference, M2_F64);
    const m2_tensor exact = golden_tensor(file, truth, M2_F64);
    const int64_t n = m2_tensor_count(&exact);
    if (n != m2_tensor_count(&x)) return; /* judged elsewhere */
    const double error = golden_relative_error(x.data, M2_F64, exact.data, M2_F64, n);
    const double largest = largest_difference(x.data, exact.data, n);
    check_one(run, row, "rel", golden_format(run, "%s %s", name, reference), error, 1);
    check_one(run, row, "max", golden_format(run, "%s %s", name, reference), largest,
              largest_difference(NULL, exact.data, n));
}
