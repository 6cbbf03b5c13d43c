/* json_file.h - JSON files of bounded size through jansson, with errors that name the file. */
#ifndef M2_IO_JSON_FILE_H
#define M2_IO_JSON_FILE_H

#include "core/status.h"

#include <jansson.h>
#include <stddef.h>

/* Load one JSON object; duplicate keys are refused.  The caller json_decref()s *root_out.
 * Errors  M2_ERR_IO, M2_ERR_FORMAT (over `bytes_max`, not JSON, not an object), naming file and line */
m2_status m2_json_load(const char *path, size_t bytes_max, json_t **root_out);

/* The whole file as a NUL-terminated string (malloc'd, for the caller to free), at most `bytes_max`. */
m2_status m2_file_read(const char *path, size_t bytes_max, char **text_out, size_t *bytes_out);

#endif
