#include "core/status.h"

#include "core/log.h"

#include <stdarg.h>
#include <stdio.h>

#define ERROR_BYTES_MAX 4096

static _Thread_local char last_error[ERROR_BYTES_MAX];

m2_status m2_fail(m2_status status, const char *format, ...)
{
    /* Formatted aside first: an argument may be the last error itself. */
    char text[ERROR_BYTES_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(last_error, sizeof last_error, "%s", text);
    m2_log_printf(M2_LOG_ERROR, m2_status_name(status), "%s", last_error);
    return status;
}

const char *m2_last_error(void)
{
    return last_error;
}

void m2_clear_error(void)
{
    last_error[0] = '\0';
}

const char *m2_status_name(m2_status status)
{
    switch (status) {
    case M2_OK:
        return "ok";
    case M2_ERR_ARG:
        return "bad argument";
    case M2_ERR_IO:
        return "i/o";
    case M2_ERR_FORMAT:
        return "bad file";
    case M2_ERR_MODEL:
        return "model mismatch";
    case M2_ERR_MEMORY:
        return "out of memory";
    case M2_ERR_NUMERIC:
        return "not finite";
    case M2_ERR_UNSUPPORTED:
        return "unsupported";
    case M2_ERR_INTERRUPTED:
        return "interrupted";
    case M2_ERR_INTERNAL:
        return "internal";
    }
    return "unknown";
}
