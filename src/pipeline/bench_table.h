/* bench_table.h - what all measurements show alike: operators against the roofs, as rows or JSON lines. */
#ifndef M2_PIPELINE_BENCH_TABLE_H
#define M2_PIPELINE_BENCH_TABLE_H

#include "backend/profile.h"
#include "pipeline/bench_roof.h"
#include "pipeline/engine.h"

#include <jansson.h>
#include <stdio.h>

typedef struct m2_spread {
    double median, min, max;
} m2_spread;

/* Of n >= 1 values, which stay in their order. */
m2_spread m2_spread_of(const double *values, int n);

/* The GPU's banner, or the instruction set. */
const char *m2_bench_device(const m2_engine *engine);

/* The time that no program beats on this machine: of its arithmetic in bf16, or of its bytes. */
double m2_roof_limit_ms(const m2_roof *roof, const m2_profile_row *row);
/* The same with every row at its own roof. */
double m2_roof_limit_of_rows(const m2_roof *roof, const m2_profile_report *parts);
/* Why figures against these roofs do not count on this device; NULL: they do. */
const char *m2_roof_fault(const m2_roof *roof, const char *device);

void m2_bench_print_roofs(FILE *out, const m2_roof *roof, const char *device);
/* A row for each operator and one for all of them. */
void m2_bench_print_rows(FILE *out, const char *title, const m2_roof *roof,
                         const m2_profile_report *parts);

/* A JSON object on a line of its own; takes the reference.  Gives 0 without memory. */
int m2_bench_put_line(FILE *out, json_t *line);
int m2_bench_put_roofs(FILE *out, const m2_roof *roof, const char *device);
/* A line for each operator; `stage` NULL: without one. */
int m2_bench_put_rows(FILE *out, const char *stage, const m2_roof *roof,
                      const m2_profile_report *parts);

#endif
