/* map.h - files mapped read-only, and a clear end when a mapped page can no longer be read.
 *
 * A mapping is read long after it was made; if the file is cut meanwhile (or its disk fails), the
 * read raises SIGBUS.  Every mapping is therefore kept in a registry that a signal handler can walk,
 * so that the end of the process names the file.
 *
 * Threads  open and close from any thread; an open map is read-only.
 */
#ifndef M2_IO_MAP_H
#define M2_IO_MAP_H

#include "core/status.h"

#include <stddef.h>

typedef struct m2_map {
    const unsigned char *data; /* [bytes]; not NULL, even if bytes is 0 */
    size_t bytes;
    char *path;
    void *entry; /* private: its place in the registry */
} m2_map;

/* Map the regular file at `path`.
 * Errors  M2_ERR_IO (cannot open or map, a directory, a pipe), M2_ERR_MEMORY */
m2_status m2_map_open(const char *path, m2_map **map_out);
void m2_map_close(m2_map *map);

/* For programs, once, at start: on SIGBUS inside a mapping write a message that names the file,
 * remove files under way (temp_file.h) and _exit(1); any other SIGBUS ends the process as it would have without a handler. */
void m2_map_guard_install(void);

#endif
