/* golden_device.c - where networks and operators run: the host, a GPU, or what stands in for one. */
#include "golden_run.h"

#include <string.h>

m2_status golden_open_backend(golden_run *run, const char *backend, m2_isa isa,
                              const m2_gpu_params *gpu)
{
    if (strcmp(backend, "cpu") == 0) {
        M2_TRY(m2_ops_init_cpu(&run->ops, run->pool, isa));
        run->host_ops = run->ops;
        return M2_OK;
    }
    if (strcmp(backend, "guarded") == 0) {
        M2_TRY(m2_guarded_open(run->pool, &run->guarded));
        m2_ops_init_guarded(&run->ops, run->guarded);
    } else {
        if (strcmp(backend, m2_gpu_vendor()) != 0)
            return m2_fail(M2_ERR_UNSUPPORTED, "--backend %s: this build has cpu%s%s", backend,
                           *m2_gpu_vendor() ? " and " : " alone", m2_gpu_vendor());
        M2_TRY(m2_gpu_open(gpu, &run->gpu));
        m2_ops_init_gpu(&run->ops, run->gpu);
    }
    M2_TRY(m2_mirror_open(&run->ops, &run->mirror));
    m2_ops_init_mirror(&run->host_ops, run->mirror);
    return M2_OK;
}

void golden_close_backend(golden_run *run)
{
    if (run->ops.device_api) golden_free_copies(run);
    m2_mirror_close(run->mirror);
    m2_guarded_close(run->guarded);
    m2_gpu_close(run->gpu);
}

const m2_ops *golden_ops(const golden_run *run)
{
    return &run->ops;
}

const m2_ops *golden_host_ops(const golden_run *run)
{
    return &run->host_ops;
}

m2_pool *golden_pool(const golden_run *run)
{
    return run->pool;
}

const char *golden_engine_backend(const golden_run *run)
{
    return run->guarded ? NULL : run->ops.backend;
}

void golden_init_measure(const golden_run *run, m2_ops *measure)
{
    m2_ops_init_measure(measure);
    measure->device_api = run->ops.device_api;
}

m2_status golden_arena(golden_run *run, m2_arena *arena, const char *name, size_t bytes)
{
    return m2_device_arena_create(&run->ops, arena, name, bytes);
}

void golden_arena_free(golden_run *run, m2_arena *arena)
{
    m2_device_arena_destroy(&run->ops, arena);
}

m2_tensor golden_to_device(golden_run *run, const m2_tensor *host)
{
    m2_tensor copy = *host;
    if (m2_device_is_host(&run->ops) || !host->data) return copy;
    if (run->n_copies == GOLDEN_COPIES_MAX ||
        run->ops.device_api->alloc(&run->ops, "golden", m2_tensor_bytes(host), &copy.data) !=
            M2_OK) {
        golden_result(run, 0, "device", "no room for %zu bytes: %s", m2_tensor_bytes(host),
                      m2_last_error());
        copy.data = NULL;
        return copy;
    }
    run->copies[run->n_copies++] = copy.data;
    run->ops.upload(&run->ops, &copy, host->data);
    return copy;
}

void golden_free_copies(golden_run *run)
{
    while (run->n_copies > 0) run->ops.device_api->release(&run->ops, run->copies[--run->n_copies]);
}

m2_tensor golden_to_host(golden_run *run, const m2_tensor *device)
{
    m2_tensor copy = *device;
    if (m2_device_is_host(&run->ops)) return copy;
    copy.data = golden_alloc(run, m2_tensor_bytes(device));
    run->ops.download(&run->ops, copy.data, device);
    golden_check_device(run);
    return copy;
}

void golden_check_device(golden_run *run)
{
    const char *fault = run->mirror ? m2_mirror_fault(run->mirror) : NULL;
    if (fault) golden_result(run, 0, "operator", "%s", fault);
    if (m2_device_wait(&run->ops) != M2_OK) golden_result(run, 0, "device", "%s", m2_last_error());
}
