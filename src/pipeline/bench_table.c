#include "pipeline/bench_table.h"

#include "backend/gpu/gpu.h"

#include <stdlib.h>
#include <string.h>

#define MIB 1048576.0
/* An H200 below these is not in the state that figures of one are compared in. */
#define H200_FLOP_S_MIN  720e12
#define H200_BYTES_S_MIN 4.0e12

m2_spread m2_spread_of(const double *values, int n)
{
    m2_spread spread = { .min = values[0], .max = values[0] };
    double *sorted = malloc((size_t)n * sizeof *sorted);
    for (int i = 0; i < n; i++) {
        if (values[i] < spread.min) spread.min = values[i];
        if (values[i] > spread.max) spread.max = values[i];
        if (sorted) sorted[i] = values[i];
    }
    spread.median = sorted ? m2_median(sorted, n) : spread.max;
    free(sorted);
    return spread;
}

const char *m2_bench_device(const m2_engine *engine)
{
    return engine->gpu ? m2_gpu_banner(engine->gpu) : engine->ops.isa;
}

/* ---- roofs ------------------------------------------------------------------------------------- */

/* The product that is the roof is one of bf16: f32 arithmetic, told by the detail, has none here. */
double m2_roof_limit_ms(const m2_roof *roof, const m2_profile_row *row)
{
    const int is_f32 = strncmp(row->detail, "f32 ", 4) == 0;
    const double by_flop = is_f32 ? 0 : 1e3 * row->flop / roof->flop_s;
    const double by_bytes = 1e3 * row->bytes / roof->bytes_s;
    return by_flop > by_bytes ? by_flop : by_bytes;
}

double m2_roof_limit_of_rows(const m2_roof *roof, const m2_profile_report *parts)
{
    double sum = 0;
    for (int i = 0; i < parts->n_rows; i++) sum += m2_roof_limit_ms(roof, &parts->rows[i]);
    return sum;
}

const char *m2_roof_fault(const m2_roof *roof, const char *device)
{
    if (!strstr(device, "H200")) return NULL;
    if (roof->flop_s < H200_FLOP_S_MIN) return "the product is below 720 TFLOP/s";
    if (roof->bytes_s < H200_BYTES_S_MIN) return "the copy is below 4.0 TB/s";
    return NULL;
}

void m2_bench_print_roofs(FILE *out, const m2_roof *roof, const char *device)
{
    const char *fault = m2_roof_fault(roof, device);
    fprintf(out, "roofs       %lld^3 bf16 product %.4g TFLOP/s, copy of %.0f MiB %.4g GB/s%s%s\n",
            (long long)roof->product_size, roof->flop_s / 1e12, (double)roof->copy_size / MIB,
            roof->bytes_s / 1e9, fault ? "; NOT COUNTED: " : "", fault ? fault : "");
}

int m2_bench_put_roofs(FILE *out, const m2_roof *roof, const char *device)
{
    const char *fault = m2_roof_fault(roof, device);
    return m2_bench_put_line(out, json_pack("{s:s,s:I,s:f,s:I,s:f,s:b,s:s?}", "event", "roofs",
                                            "product_size", (json_int_t)roof->product_size,
                                            "flop_s", roof->flop_s, "copy_bytes",
                                            (json_int_t)roof->copy_size, "bytes_s", roof->bytes_s,
                                            "counts", fault == NULL, "fault", fault));
}

/* ---- operators --------------------------------------------------------------------------------- */

/* `all_ms` is what 100% are. */
static void print_row(FILE *out, const m2_profile_row *row, const char *name, double all_ms,
                      double limit)
{
    fprintf(out, "%-38s %6lld %10.3f %5.1f %9.4g %9.4g %9.4g %9.4g %9.3f %5.1f\n", name,
            (long long)row->n_calls, row->ms, 100 * row->ms / all_ms, row->flop / 1e12,
            row->bytes / 1e9, row->flop / row->ms / 1e9, row->bytes / row->ms / 1e6, limit,
            100 * limit / row->ms);
}

void m2_bench_print_rows(FILE *out, const char *title, const m2_roof *roof,
                         const m2_profile_report *parts)
{
    fprintf(out, "%-38s %6s %10s %5s %9s %9s %9s %9s %9s %5s\n", title, "calls", "ms", "%", "TFLOP",
            "GB", "TFLOP/s", "GB/s", "limit ms", "of it");
    for (int i = 0; i < parts->n_rows; i++) {
        const m2_profile_row *row = &parts->rows[i];
        char name[64];
        snprintf(name, sizeof name, "%s %s", row->op, row->detail);
        print_row(out, row, name, parts->ms, m2_roof_limit_ms(roof, row));
    }
    const m2_profile_row all = {
        .n_calls = parts->n_calls, .ms = parts->ms, .flop = parts->flop, .bytes = parts->bytes
    };
    print_row(out, &all, "all", parts->ms, m2_roof_limit_of_rows(roof, parts));
}

int m2_bench_put_line(FILE *out, json_t *line)
{
    char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
    json_decref(line);
    if (!text) return 0;
    fprintf(out, "%s\n", text);
    free(text);
    return 1;
}

int m2_bench_put_rows(FILE *out, const char *stage, const m2_roof *roof,
                      const m2_profile_report *parts)
{
    for (int i = 0; i < parts->n_rows; i++) {
        const m2_profile_row *row = &parts->rows[i];
        json_t *line =
            json_pack("{s:s,s:s,s:s,s:I,s:f,s:f,s:f,s:f}", "event", "part", "op", row->op, "detail",
                      row->detail, "calls", (json_int_t)row->n_calls, "ms", row->ms, "flop",
                      row->flop, "bytes", row->bytes, "limit_ms", m2_roof_limit_ms(roof, row));
        if (stage && line && json_object_set_new(line, "stage", json_string(stage)) != 0) {
            json_decref(line);
            return 0;
        }
        if (!m2_bench_put_line(out, line)) return 0;
    }
    return 1;
}
