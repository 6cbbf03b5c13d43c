/* temp_file.h - files that appear under their name only when whole.
 *
 * A file is written beside its target and renamed at the end.  Files under way are kept in a small
 * table, so that a process that must end at once (a second Ctrl-C, a lost page) can still remove
 * them: m2_temp_remove_all() may be called from a signal handler.
 *
 * Threads  safe.
 */
#ifndef M2_CORE_TEMP_FILE_H
#define M2_CORE_TEMP_FILE_H

#include "core/status.h"

#include <stdint.h>

#define M2_TEMP_PATH_MAX 4096

/* One file, whatever it is called.  The time is there because the number of a file that is gone is
 * soon given to another. */
typedef struct m2_file_id {
    uint64_t device, inode;
    int64_t seconds, nanoseconds; /* of the last change of what it holds */
} m2_file_id;

typedef struct m2_temp_file {
    char path[M2_TEMP_PATH_MAX];   /* write here                   */
    char target[M2_TEMP_PATH_MAX]; /* and it will become it        */
    m2_file_id id;                 /* of what a commit made of it  */
    int slot;                      /* private                      */
} m2_temp_file;

/* Choose a free name beside `target` and create the file there, empty.
 * Errors  M2_ERR_IO: the directory does not exist or cannot be written; M2_ERR_ARG: name too long */
m2_status m2_temp_create(m2_temp_file *file, const char *target);
/* Flush to the disk and rename over the target.  On an error the file is removed. */
m2_status m2_temp_commit(m2_temp_file *file);
/* Remove it; nothing happens after a commit or a discard. */
void m2_temp_discard(m2_temp_file *file);

/* Whether two names are of one file: the same text, or the same file behind a link. */
int m2_is_same_file(const char *a, const char *b);

/* The file that `path` names now; 0 if there is none, and then all of *id_out is zero. */
int m2_file_id_of(const char *path, m2_file_id *id_out);
/* Whether `path` still names that file, as it was.  Never of an id that is all zero. */
int m2_file_is(const char *path, const m2_file_id *id);

/* Remove every file under way.  Async-signal-safe. */
void m2_temp_remove_all(void);

#endif
