#include "backend/gpu/platform/library.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *open_in(const char *folder, size_t folder_bytes, const char *name, char *path,
                     size_t bytes)
{
    const int n = snprintf(path, bytes, "%.*s/%s", (int)folder_bytes, folder, name);
    if (n < 0 || (size_t)n >= bytes || access(path, R_OK) != 0) return NULL;
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void *open_in_list(const char *folders, const char *name, char *path, size_t bytes)
{
    while (folders && *folders) {
        const char *end = strchr(folders, ':');
        const size_t n = end ? (size_t)(end - folders) : strlen(folders);
        void *library = n ? open_in(folders, n, name, path, bytes) : NULL;
        if (library || !end) return library;
        folders = end + 1;
    }
    return NULL;
}

static void *open_in_glob(const char *pattern, const char *name, char *path, size_t bytes)
{
    glob_t found;
    void *library = NULL;
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc && !library; i++)
            library = open_in(found.gl_pathv[i], strlen(found.gl_pathv[i]), name, path, bytes);
        globfree(&found);
    }
    return library;
}

/* Torch's wheels keep the libraries in site-packages/nvidia/PART/lib of the environment. */
static void *open_beside_python(const char *name, char *path, size_t bytes)
{
    const char *folders = getenv("PATH");
    char program[PATH_MAX], pattern[PATH_MAX + 64];
    while (folders && *folders) {
        const char *end = strchr(folders, ':');
        const size_t n = end ? (size_t)(end - folders) : strlen(folders);
        snprintf(program, sizeof program, "%.*s/python3", (int)n, folders);
        if (access(program, X_OK) == 0) {
            static const char *const kinds[] = { "site-packages", "dist-packages" };
            for (int i = 0; i < 2; i++) {
                snprintf(pattern, sizeof pattern, "%.*s/../lib/python3*/%s/nvidia/*/lib", (int)n,
                         folders, kinds[i]);
                void *library = open_in_glob(pattern, name, path, bytes);
                if (library) return library;
            }
        }
        if (!end) return NULL;
        folders = end + 1;
    }
    return NULL;
}

void *m2_gpu_library_open(const char *name, char *path, size_t bytes)
{
    void *library = open_in_list(getenv("MAGI2_CUDA_LIBS"), name, path, bytes);
    if (library) return library;
    snprintf(path, bytes, "%s", name);
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library) return library;
    library = open_in_list("/usr/local/cuda/lib64:/opt/cuda/lib64:/usr/lib/x86_64-linux-gnu", name,
                           path, bytes);
    return library ? library : open_beside_python(name, path, bytes);
}
