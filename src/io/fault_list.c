#include "io/fault_list.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define CLOSING_BYTES  40 /* "\n  ... and N more" */
#define LINE_BYTES_MAX 400

void m2_fault_add(m2_fault_list *list, const char *format, ...)
{
    list->n++;
    /* Once a line did not fit, shorter ones after it would hide that some are left out. */
    if (list->shown + 1 < list->n || list->shown >= M2_FAULT_LINES_MAX) return;
    char line[LINE_BYTES_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    const int bytes = (int)strlen(line) + 3;
    if (list->used + bytes >= M2_FAULT_BYTES_MAX) return;
    snprintf(list->text + list->used, (size_t)bytes + 1, "\n  %s", line);
    list->used += bytes;
    list->shown++;
}

char *m2_fault_text(const m2_fault_list *list, int lines_max, char *text, size_t bytes)
{
    assert(bytes > CLOSING_BYTES);
    int lines = 0;
    size_t used = 0;
    while (lines < list->shown && lines < lines_max) {
        const char *line = list->text + used;
        const char *next = strstr(line + 1, "\n  ");
        const size_t line_bytes = next ? (size_t)(next - line) : strlen(line);
        if (used + line_bytes + CLOSING_BYTES > bytes) break;
        memcpy(text + used, line, line_bytes);
        used += line_bytes;
        lines++;
    }
    text[used] = '\0';
    if (lines < list->n)
        snprintf(text + used, CLOSING_BYTES, "\n  ... and %d more", list->n - lines);
    return text;
}
