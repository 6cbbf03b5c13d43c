/* golden_run.h - the state of one golden_check run (golden.h is what components use). */
#ifndef M2_TESTS_GOLDEN_GOLDEN_RUN_H
#define M2_TESTS_GOLDEN_GOLDEN_RUN_H

#include "golden.h"

#include "support/guarded_device.h"
#include "support/mirror_ops.h"

#include "backend/cpu/cpu.h"
#include "backend/gpu/gpu.h"

#define GOLDEN_COPIES_MAX 256

struct golden_run {
    m2_ops ops, host_ops;
    m2_gpu *gpu;
    m2_guarded *guarded;
    m2_mirror *mirror;
    void *copies[GOLDEN_COPIES_MAX]; /* on the device                      */
    int n_copies;
    m2_pool *pool;
    int is_json;
    const char *component; /* now being checked                   */
    int n_passed, n_failed, n_skipped;
    void **blocks; /* freed at the end of the run         */
    int n_blocks, room;
};

/* backend  "cpu", "guarded" (the CPU's operators behind memory that the host cannot touch), or a
 *          vendor of GPUs, opened as `gpu` says */
m2_status golden_open_backend(golden_run *run, const char *backend, m2_isa isa,
                              const m2_gpu_params *gpu);
void golden_close_backend(golden_run *run);
void golden_run_free(golden_run *run);

#endif
