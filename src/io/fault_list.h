/* fault_list.h - many faults in one message of bounded size.
 *
 * A check names everything that is wrong at once.  Lines are kept while they fit in an error
 * message (status.h); the rest is counted.
 */
#ifndef M2_IO_FAULT_LIST_H
#define M2_IO_FAULT_LIST_H

#include <stddef.h>

#define M2_FAULT_LINES_MAX 40
#define M2_FAULT_BYTES_MAX 3200

typedef struct m2_fault_list {
    int n;     /* faults added             */
    int shown; /* of these, lines in `text` */
    int used;
    char text[M2_FAULT_BYTES_MAX];
} m2_fault_list;

void m2_fault_add(m2_fault_list *list, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Write the lines to `text`, each led by a newline and two spaces, as many as fit in `lines_max`
 * lines and `bytes` bytes; those left out are counted in a last line.  Gives back `text`. */
char *m2_fault_text(const m2_fault_list *list, int lines_max, char *text, size_t bytes);

#endif
