#include "model/text/buffer.h"

#include "model/text/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room for `bytes` more and the NUL. */
static int reserve(m2_buffer *buffer, size_t bytes)
{
    if (buffer->has_failed) return 0;
    if (bytes < buffer->room - buffer->bytes) return 1;
    size_t room = buffer->room ? buffer->room : 64;
    while (room - buffer->bytes <= bytes) {
        if (room > SIZE_MAX / 2) {
            buffer->has_failed = 1;
            return 0;
        }
        room *= 2;
    }
    char *larger = realloc(buffer->data, room);
    if (!larger) {
        buffer->has_failed = 1;
        return 0;
    }
    buffer->data = larger;
    buffer->room = room;
    return 1;
}

void m2_buffer_append(m2_buffer *buffer, const char *text, size_t bytes)
{
    if (!reserve(buffer, bytes)) return;
    if (bytes) memcpy(buffer->data + buffer->bytes, text, bytes);
    buffer->bytes += bytes;
    buffer->data[buffer->bytes] = '\0';
}

void m2_buffer_puts(m2_buffer *buffer, const char *text)
{
    m2_buffer_append(buffer, text, strlen(text));
}

void m2_buffer_printf(m2_buffer *buffer, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof text)
        buffer->has_failed = 1; /* only short pieces are printed; anything else is a bug */
    else
        m2_buffer_append(buffer, text, (size_t)n);
}

void m2_buffer_put_code_point(m2_buffer *buffer, uint32_t code_point)
{
    char text[4];
    m2_buffer_append(buffer, text, m2_utf8_put(code_point, text));
}

void m2_buffer_clear(m2_buffer *buffer)
{
    buffer->bytes = 0;
    if (buffer->data) buffer->data[0] = '\0';
}

void m2_buffer_free(m2_buffer *buffer)
{
    free(buffer->data);
    *buffer = (m2_buffer){ 0 };
}
