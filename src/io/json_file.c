#include "io/json_file.h"

#include "io/no_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

m2_status m2_file_read(const char *path, size_t bytes_max, char **text_out, size_t *bytes_out)
{
    struct stat info;
    /* Opening a pipe would wait for who writes to it. */
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode))
        return m2_fail(M2_ERR_FORMAT, "%s: is a pipe or a device; give an ordinary file", path);
    FILE *file = fopen(path, "rb");
    if (!file) return m2_fail_open(path);
    char *text = NULL;
    size_t used = 0, room = 0;
    m2_status status = M2_OK;
    for (;;) {
        if (used == room) {
            room = room ? room * 2 : 65536;
            char *larger = realloc(text, room + 1);
            if (!larger) {
                status = m2_fail(M2_ERR_MEMORY, "%s: no memory for %zu bytes", path, room);
                break;
            }
            text = larger;
        }
        const size_t n = fread(text + used, 1, room - used, file);
        used += n;
        if (used > bytes_max) {
            status = m2_fail(M2_ERR_FORMAT, "%s: larger than the %zu bytes allowed here", path,
                             bytes_max);
            break;
        }
        if (n == 0) {
            if (ferror(file))
                status = m2_fail(M2_ERR_IO, "%s: cannot read: %s", path, strerror(errno));
            break;
        }
    }
    fclose(file);
    if (status != M2_OK) {
        free(text);
        return status;
    }
    text[used] = '\0';
    *text_out = text;
    *bytes_out = used;
    return M2_OK;
}

m2_status m2_json_load(const char *path, size_t bytes_max, json_t **root_out)
{
    char *text = NULL;
    size_t bytes = 0;
    M2_TRY(m2_file_read(path, bytes_max, &text, &bytes));
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (!root)
        return m2_fail(M2_ERR_FORMAT, "%s: not JSON: line %d column %d: %s", path, error.line,
                       error.column, error.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return m2_fail(M2_ERR_FORMAT, "%s: the top of the file must be a JSON object", path);
    }
    *root_out = root;
    return M2_OK;
}
