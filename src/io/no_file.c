#include "io/no_file.h"

#include "core/options.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_MAX    8
#define DISTANCE_MAX 3 /* letters wrong in a name that is taken for a slip */

static int is_shown(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

void m2_folder_names(const char *dir, char *text, size_t bytes)
{
    struct dirent **entries = NULL;
    text[0] = '\0';
    const int n = scandir(dir, &entries, is_shown, alphasort);
    size_t used = 0;
    int n_written = 0;
    for (; n_written < n && n_written < NAMES_MAX; n_written++) {
        const int written = snprintf(text + used, bytes - used, "%s%.60s", n_written ? ", " : "",
                                     entries[n_written]->d_name);
        if (written < 0 || (size_t)written >= bytes - used) break;
        used += (size_t)written;
    }
    if (n_written < n) snprintf(text + used, bytes - used, " ...");
    if (n == 0) snprintf(text, bytes, "nothing");
    for (int i = 0; i < n; i++) free(entries[i]);
    free(entries);
}

/* The name in `dir` nearest to `name`; 0 if none is near. */
static int find_nearest(const char *dir, const char *name, char nearest[256])
{
    int best = DISTANCE_MAX + 1;
    DIR *handle = opendir(dir);
    for (struct dirent *entry; handle && (entry = readdir(handle));) {
        if (!is_shown(entry)) continue;
        const int distance = m2_options_distance(name, entry->d_name);
        if (distance >= best || distance * 2 >= (int)strlen(name)) continue;
        best = distance;
        snprintf(nearest, 256, "%s", entry->d_name);
    }
    if (handle) closedir(handle);
    return best <= DISTANCE_MAX;
}

m2_status m2_fail_open(const char *path)
{
    const int error = errno;
    char dir[4096], nearest[256], names[600];
    const int n = snprintf(dir, sizeof dir, "%s", path);
    if (error != ENOENT || n <= 0 || (size_t)n >= sizeof dir)
        return m2_fail(M2_ERR_IO, "%s: cannot open: %s", path, strerror(error));
    char *slash = strrchr(dir, '/');
    const char *name = slash ? path + (slash - dir) + 1 : path;
    const size_t prefix = slash ? (size_t)(slash - dir) + 1 : 0;
    if (!slash)
        strcpy(dir, ".");
    else if (slash == dir)
        strcpy(dir, "/");
    else
        *slash = '\0';
    if (find_nearest(dir, name, nearest))
        return m2_fail(M2_ERR_IO, "%s: cannot open: %s; did you mean %.*s%s?", path,
                       strerror(error), (int)prefix, path, nearest);
    m2_folder_names(dir, names, sizeof names);
    if (!names[0])
        return m2_fail(M2_ERR_IO, "%s: cannot open: %s; its folder is not there either", path,
                       strerror(error));
    return m2_fail(
        M2_ERR_IO,
        "%s: cannot open: %s; check the path, or download what is missing; the folder %s "
        "holds %s",
        path, strerror(error), dir, names);
}
