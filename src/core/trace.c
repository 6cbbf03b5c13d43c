#include "core/trace.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

void m2_tap(const m2_trace *trace, const m2_tensor *tensor, const char *name_format, ...)
{
    if (!trace || !trace->show) return;
    char name[M2_TAP_NAME_MAX];
    va_list args;
    va_start(args, name_format);
    const int length = vsnprintf(name, sizeof name, name_format, args);
    va_end(args);
    assert(length > 0 && length < M2_TAP_NAME_MAX);
    if (trace->wants && !trace->wants(trace->user, name)) return;
    m2_tensor shown = *tensor;
    trace->show(trace->user, name, &shown);
}
