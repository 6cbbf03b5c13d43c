/* gpu.h - one GPU as an operator table: CUDA or MUSA, chosen when built.
 *
 * Opening picks the device, creates one stream and a fixed workspace, loads the vendor's libraries
 * where they are found, and fills the table with kernels for this architecture.  Nothing else is
 * allocated later: arenas come through device.h.
 *
 * Threads  one m2_gpu, one thread at a time; any number of them in a process.
 */
#ifndef M2_BACKEND_GPU_GPU_H
#define M2_BACKEND_GPU_GPU_H

#include "backend/device.h"

typedef struct m2_gpu m2_gpu;

/* Of a device beside arenas.  What opening takes: the kernels' workspace, 96 MiB, and the matrix
 * library's, 32.  And at most what the driver takes for a process with these kernels and a recorded
 * step: 539 MiB on an H200 with driver 580, the difference between what it counts and what was planned.
 * Plans and limits count both. */
#define M2_GPU_OWN_BYTES    ((size_t)128 << 20)
#define M2_GPU_DRIVER_BYTES ((size_t)544 << 20)

typedef struct m2_gpu_params {
    int device;          /* index among the visible ones                                      */
    size_t memory_limit; /* bytes that may be taken on the device, the driver's part counted;
                            0: all that is free                                                 */
    int use_portable;    /* only the kernels that every vendor runs, no vendor library          */
    int prefers_dnn;     /* attention by the vendor's library before our own, to compare them   */
} m2_gpu_params;

/* Errors  M2_ERR_UNSUPPORTED (no driver, no device, too old: named), M2_ERR_ARG (device index),
 *         M2_ERR_MEMORY */
m2_status m2_gpu_open(const m2_gpu_params *params, m2_gpu **gpu_out);
void m2_gpu_close(m2_gpu *gpu);

/* The table works on `gpu`, which must outlive it. */
void m2_ops_init_gpu(m2_ops *ops, m2_gpu *gpu);

/* One line for people: name, architecture, memory, driver, libraries with versions. */
const char *m2_gpu_banner(const m2_gpu *gpu);

/* "cuda" or "musa", as built; "" in a build without a GPU backend. */
const char *m2_gpu_vendor(void);

/* How many devices the driver shows; 0 with the reason in `text` if none. */
int m2_gpu_count(char *text, size_t bytes);

#endif
