#include "report.h"

#include <math.h>
#include <string.h>

/* Truths are stored in f32, errors were taken in f64 before. */
#define SHARE_OFF_MAX  1e-4
#define STORED_OFF_MAX 6e-8

json_t *golden_report(golden_run *run, const char *dir)
{
    const char *path = golden_format(run, "%s/report.json", dir);
    return golden_is_file(path) ? golden_json(run, path) : NULL;
}

static double recorded_error(const json_t *report, const char *case_name, const char *tensor)
{
    size_t i;
    json_t *line;
    json_array_foreach(json_object_get(report, "errors_ref_vs_truth"), i, line)
    {
        const char *of_case = json_string_value(json_object_get(line, "case"));
        const char *name = json_string_value(json_object_get(line, "tensor"));
        if (of_case && name && strcmp(of_case, case_name) == 0 && strcmp(name, tensor) == 0)
            return json_number_value(json_object_get(line, "rel"));
    }
    return NAN;
}

void golden_report_check(golden_run *run, golden_file *file, const json_t *report,
                         const char *case_name, const char *tensor, const char *reference,
                         const char *truth)
{
    const double recorded = recorded_error(report, case_name, tensor);
    if (isnan(recorded)) return;
    const m2_tensor a = golden_tensor(file, reference, M2_F32);
    const m2_tensor b = golden_tensor(file, truth, M2_F32);
    if (!a.data || !b.data || m2_tensor_count(&a) != m2_tensor_count(&b)) return;
    const double error = golden_relative_error(a.data, M2_F32, b.data, M2_F32, m2_tensor_count(&a));
    if (!(fabs(error - recorded) <= SHARE_OFF_MAX * recorded + STORED_OFF_MAX))
        golden_result(run, 0, golden_format(run, "%s %s", case_name, tensor),
                      "the reference's error is %.6e, its report says %.6e", error, recorded);
}
