/* buffer.h - a growing string that remembers a failed allocation.
 *
 * After a failure it keeps its contents and drops what is appended, so that a writer checks once,
 * at the end.
 */
#ifndef M2_MODEL_TEXT_BUFFER_H
#define M2_MODEL_TEXT_BUFFER_H

#include <stddef.h>
#include <stdint.h>

typedef struct m2_buffer {
    char *data; /* malloc'd; ends in NUL once anything was appended, or NULL */
    size_t bytes, room;
    int has_failed;
} m2_buffer;

void m2_buffer_append(m2_buffer *buffer, const char *text, size_t bytes);
void m2_buffer_puts(m2_buffer *buffer, const char *text);
void m2_buffer_printf(m2_buffer *buffer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void m2_buffer_put_code_point(m2_buffer *buffer, uint32_t code_point);
void m2_buffer_clear(m2_buffer *buffer); /* keeps the memory */
void m2_buffer_free(m2_buffer *buffer);

#endif
