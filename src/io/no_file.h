/* no_file.h - what to say of a file that is not there.
 *
 * The message offers the name that is nearest to the one asked for, else what the folder holds, so
 * that a wrong path, a misspelt name and an incomplete download can be told apart.
 */
#ifndef M2_IO_NO_FILE_H
#define M2_IO_NO_FILE_H

#include "core/status.h"

#include <stddef.h>

/* M2_ERR_IO for `path`, which could not be opened for the reason in errno. */
m2_status m2_fail_open(const char *path);

/* The first names of a folder in order, ", " between them; "nothing" for an empty one, "" if it
 * cannot be read. */
void m2_folder_names(const char *dir, char *text, size_t bytes);

#endif
