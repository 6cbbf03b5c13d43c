/* library.h - opens a vendor library at run time, where it may lie. */
#ifndef M2_GPU_PLATFORM_LIBRARY_H
#define M2_GPU_PLATFORM_LIBRARY_H

#include <stddef.h>

/* Looks for `name` ("libcublasLt.so.13") in $MAGI2_CUDA_LIBS (folders, ':' between), the loader's
 * path, the toolkit's folders, and beside the torch of the first python3 on the PATH.
 * Returns  a handle of dlopen, or NULL; the path that was opened in `path` */
void *m2_gpu_library_open(const char *name, char *path, size_t bytes);

#endif
