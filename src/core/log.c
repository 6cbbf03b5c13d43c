#include "core/log.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local const m2_log *bound;

const m2_log *m2_log_bind(const m2_log *log)
{
    const m2_log *before = bound;
    bound = log;
    return before;
}

const m2_log *m2_log_bound(void)
{
    return bound;
}

void m2_log_printf(m2_log_level level, const char *component, const char *format, ...)
{
    if (!bound || !bound->write || level > bound->level) return;
    char text[4352];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    bound->write(bound->user, level, component, text);
}
