#include "backend/gpu/memory.h"

#include "backend/gpu/gate.h"
#include "core/log.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB 1048576.0

/* Every copy from or to the host goes through two pinned buffers, so that a file of any size needs no
 * more pinned memory than this and the copy of one part runs beside the read of the next. */
#define N_STAGES    2
#define STAGE_BYTES ((size_t)32 << 20)

/* What the driver takes between the first block and a recorded step: 10 MiB on an H200. */
#define DRIVER_GROWTH_BYTES ((size_t)16 << 20)

/* A wait asks again and again, at once at first, as most are short, then after naps. */
#define N_ASKS_AT_ONCE  2000
#define NAP_NANOSECONDS 20000

struct m2_gpu_staging {
    char *buffer[N_STAGES]; /* NULL: the system gave no pinned memory; copies are plain ones */
    gpuEvent_t is_free[N_STAGES];
    int next;
};

/* Threads come and go; the runtime keeps the current device per thread. */
static void come_in(const m2_gpu *gpu)
{
    m2_gpu_enter();
    gpuSetDevice(gpu->device);
}

static void note(m2_gpu *gpu, gpuError_t error, const char *what)
{
    if (error == gpuSuccess) return;
    gpuGetLastError();
    if (gpu->error != gpuSuccess) return;
    gpu->error = error;
    gpu->error_op = what;
}

/* Until a stream (`event` NULL) or an event is done, mostly outside of the gate. */
static gpuError_t wait_for(m2_gpu *gpu, const gpuEvent_t *event)
{
    for (int n_asked = 0;; n_asked++) {
        come_in(gpu);
        const gpuError_t error = event ? gpuEventQuery(*event) : gpuStreamQuery(gpu->stream);
        if (error == gpuErrorNotReady) gpuGetLastError();
        m2_gpu_leave();
        if (error != gpuErrorNotReady) return error;
        const struct timespec nap = { 0, NAP_NANOSECONDS };
        if (n_asked < N_ASKS_AT_ONCE)
            sched_yield();
        else
            nanosleep(&nap, NULL);
    }
}

void m2_gpu_finish(m2_gpu *gpu, const char *what)
{
    note(gpu, wait_for(gpu, NULL), what);
}

/* ---- memory ------------------------------------------------------------------------------------- */

/* What the driver takes for this process, and the kernels and recordings that it has not loaded yet.
 * It counts the memory of all programs in one number: what is more than usual is theirs. */
static size_t driver_bytes(const m2_gpu *gpu, size_t free_bytes, size_t total)
{
    const size_t in_use = total - free_bytes;
    const size_t others = in_use > gpu->memory_used ? in_use - gpu->memory_used : 0;
    const size_t whole = others + DRIVER_GROWTH_BYTES;
    return whole < M2_GPU_DRIVER_BYTES ? whole : M2_GPU_DRIVER_BYTES;
}

typedef struct room {
    size_t free_bytes, driver_bytes;
    size_t bytes; /* that can be taken */
} room;

static room look_at_room(const m2_gpu *gpu)
{
    room it = { 0, 0, 0 };
    size_t total = 0;
    if (gpuMemGetInfo(&it.free_bytes, &total) != gpuSuccess) gpuGetLastError();
    it.bytes = it.free_bytes;
    if (!gpu->memory_limit) return it;
    it.driver_bytes = driver_bytes(gpu, it.free_bytes, total);
    const size_t taken = gpu->memory_used + it.driver_bytes;
    const size_t allowed = gpu->memory_limit > taken ? gpu->memory_limit - taken : 0;
    if (allowed < it.bytes) it.bytes = allowed;
    return it;
}

static m2_status no_memory(const m2_gpu *gpu, const char *name, size_t bytes, const room *it)
{
    if (gpu->memory_limit && bytes > it->bytes && it->bytes < it->free_bytes)
        return m2_fail(M2_ERR_MEMORY,
                       "%s: needs %.0f MiB on device %d, %.0f MiB are taken and %.0f the driver's, "
                       "--vram-limit allows %.0f MiB; raise it or use a smaller --tier",
                       name, (double)bytes / MIB, gpu->device, (double)gpu->memory_used / MIB,
                       (double)it->driver_bytes / MIB, (double)gpu->memory_limit / MIB);
    return m2_fail(M2_ERR_MEMORY,
                   "%s: needs %.0f MiB on device %d, %.0f MiB are free; end other programs on it, "
                   "choose another --device or use a smaller --tier",
                   name, (double)bytes / MIB, gpu->device, (double)it->free_bytes / MIB);
}

static m2_status take_block(m2_gpu *gpu, const char *name, size_t bytes, void **memory_out)
{
    const room it = look_at_room(gpu);
    if (bytes > it.bytes) return no_memory(gpu, name, bytes, &it);
    void *memory = NULL;
    const gpuError_t error = gpuMalloc(&memory, bytes ? bytes : 1);
    if (error != gpuSuccess) {
        gpuGetLastError();
        if (error == gpuErrorMemoryAllocation) return no_memory(gpu, name, bytes, &it);
        return m2_fail(M2_ERR_INTERNAL, "%s: device %d gives no memory: %s", name, gpu->device,
                       gpuGetErrorString(error));
    }
    m2_gpu_block *block = malloc(sizeof *block);
    if (!block) {
        gpuFree(memory);
        return m2_fail(M2_ERR_MEMORY, "%s: no memory to note a block", name);
    }
    *block = (m2_gpu_block){ .memory = memory, .bytes = bytes, .next = gpu->blocks };
    gpu->blocks = block;
    gpu->memory_used += bytes;
    *memory_out = memory;
    return M2_OK;
}

static m2_status device_alloc(const m2_ops *ops, const char *name, size_t bytes, void **memory_out)
{
    m2_gpu *gpu = m2_gpu_of(ops);
    come_in(gpu);
    const m2_status status = take_block(gpu, name, bytes, memory_out);
    m2_gpu_leave();
    return status;
}

static void device_release(const m2_ops *ops, void *memory)
{
    m2_gpu *gpu = m2_gpu_of(ops);
    for (m2_gpu_block **at = &gpu->blocks; *at; at = &(*at)->next) {
        m2_gpu_block *block = *at;
        if (block->memory != memory) continue;
        gpu->memory_used -= block->bytes;
        *at = block->next;
        free(block);
        break;
    }
    m2_gpu_finish(gpu, "release");
    come_in(gpu);
    note(gpu, gpuFree(memory), "release");
    m2_gpu_leave();
}

static void device_memory(const m2_ops *ops, size_t *free_out, size_t *total_out)
{
    come_in(m2_gpu_of(ops));
    if (gpuMemGetInfo(free_out, total_out) != gpuSuccess) {
        gpuGetLastError();
        *free_out = *total_out = 0;
    }
    m2_gpu_leave();
}

static size_t device_room(const m2_ops *ops)
{
    come_in(m2_gpu_of(ops));
    const room it = look_at_room(m2_gpu_of(ops));
    m2_gpu_leave();
    return it.bytes;
}

/* ---- copies --------------------------------------------------------------------------------------- */

static m2_status staging_open(m2_gpu *gpu)
{
    struct m2_gpu_staging *staging = calloc(1, sizeof *staging);
    if (!staging) return m2_fail(M2_ERR_MEMORY, "no memory for staging");
    gpu->staging = staging;
    for (int i = 0; i < N_STAGES; i++) {
        void *buffer = NULL;
        if (gpuHostAlloc(&buffer, STAGE_BYTES, gpuHostAllocDefault) != gpuSuccess ||
            gpuEventCreateWithFlags(&staging->is_free[i], gpuEventDisableTiming) != gpuSuccess) {
            gpuGetLastError();
            m2_debug("gpu", "no pinned memory: copies are plain ones");
            if (buffer) gpuFreeHost(buffer);
            break;
        }
        staging->buffer[i] = buffer;
    }
    return M2_OK;
}

static void staging_close(m2_gpu *gpu)
{
    if (!gpu->staging) return;
    for (int i = 0; i < N_STAGES; i++) {
        if (!gpu->staging->buffer[i]) continue;
        gpuEventDestroy(gpu->staging->is_free[i]);
        gpuFreeHost(gpu->staging->buffer[i]);
    }
    free(gpu->staging);
}

/* The buffer that comes next, once the device is done with it. */
static char *take_stage(m2_gpu *gpu, gpuEvent_t *is_free_out)
{
    struct m2_gpu_staging *staging = gpu->staging;
    const int i = staging->next;
    staging->next = (i + 1) % N_STAGES;
    note(gpu, wait_for(gpu, &staging->is_free[i]), "upload");
    *is_free_out = staging->is_free[i];
    return staging->buffer[i];
}

static int has_stages(const m2_gpu *gpu)
{
    return gpu->staging->buffer[N_STAGES - 1] != NULL;
}

static void enqueue_copy(m2_gpu *gpu, void *to, const void *from, size_t bytes,
                         enum gpuMemcpyKind kind, const gpuEvent_t *is_done, const char *what)
{
    come_in(gpu);
    note(gpu, gpuMemcpyAsync(to, from, bytes, kind, gpu->stream), what);
    if (is_done) note(gpu, gpuEventRecord(*is_done, gpu->stream), what);
    m2_gpu_leave();
}

/* Without staging: done when it returns. */
static void copy_plainly(m2_gpu *gpu, void *to, const void *from, size_t bytes,
                         enum gpuMemcpyKind kind, const char *what)
{
    enqueue_copy(gpu, to, from, bytes, kind, NULL, what);
    m2_gpu_finish(gpu, what);
}

void m2_gpu_upload(const m2_ops *ops, m2_tensor *to, const void *from_host)
{
    m2_gpu *gpu = m2_gpu_of(ops);
    const size_t bytes = m2_tensor_bytes(to);
    if (bytes == 0) return;
    if (!has_stages(gpu)) {
        copy_plainly(gpu, to->data, from_host, bytes, gpuMemcpyHostToDevice, "upload");
        return;
    }
    for (size_t done = 0; done < bytes; done += STAGE_BYTES) {
        const size_t part = bytes - done < STAGE_BYTES ? bytes - done : STAGE_BYTES;
        gpuEvent_t is_free;
        char *stage = take_stage(gpu, &is_free);
        memcpy(stage, (const char *)from_host + done, part);
        enqueue_copy(gpu, (char *)to->data + done, stage, part, gpuMemcpyHostToDevice, &is_free,
                     "upload");
    }
}

void m2_gpu_download(const m2_ops *ops, void *to_host, const m2_tensor *from)
{
    m2_gpu *gpu = m2_gpu_of(ops);
    const size_t bytes = m2_tensor_bytes(from);
    if (bytes == 0) return;
    if (!has_stages(gpu)) {
        copy_plainly(gpu, to_host, from->data, bytes, gpuMemcpyDeviceToHost, "download");
        return;
    }
    for (size_t done = 0; done < bytes; done += STAGE_BYTES) {
        const size_t part = bytes - done < STAGE_BYTES ? bytes - done : STAGE_BYTES;
        gpuEvent_t is_free;
        char *stage = take_stage(gpu, &is_free);
        enqueue_copy(gpu, stage, (const char *)from->data + done, part, gpuMemcpyDeviceToHost,
                     &is_free, "download");
        note(gpu, wait_for(gpu, &is_free), "download");
        memcpy((char *)to_host + done, stage, part);
    }
}

/* ---- waiting and recordings --------------------------------------------------------------------------- */

static m2_status device_wait(const m2_ops *ops)
{
    m2_gpu *gpu = m2_gpu_of(ops);
    m2_gpu_finish(gpu, "wait");
    if (gpu->error == gpuSuccess) return M2_OK;
    return m2_fail(M2_ERR_INTERNAL,
                   "device %d failed in %s: %s; its driver's log (dmesg) may say more", gpu->device,
                   gpu->error_op, gpuGetErrorString(gpu->error));
}

struct m2_recording {
    gpuGraphExec_t exec;
};

static m2_status device_record_begin(const m2_ops *ops)
{
    m2_gpu *gpu = m2_gpu_of(ops);
    m2_gpu_enter_alone();
    gpuSetDevice(gpu->device);
    gpu->error_before = gpu->error;
    /* Global: an allocation or a wait by anybody, libraries too, breaks the recording. */
    const gpuError_t error = gpuStreamBeginCapture(gpu->stream, gpuStreamCaptureModeGlobal);
    if (error == gpuSuccess) return M2_OK;
    gpuGetLastError();
    m2_gpu_leave();
    return m2_fail(M2_ERR_INTERNAL, "device %d cannot record a step: %s", gpu->device,
                   gpuGetErrorString(error));
}

static gpuError_t end_capture(m2_gpu *gpu, gpuGraphExec_t *exec_out)
{
    gpuGraph_t graph = NULL;
    gpuError_t error = gpuStreamEndCapture(gpu->stream, &graph);
    m2_gpu_leave();
    come_in(gpu);
    if (error == gpuSuccess) error = m2_gpu_graph_instantiate(exec_out, graph);
    if (graph) gpuGraphDestroy(graph);
    gpuGetLastError();
    m2_gpu_leave();
    return error;
}

static m2_status device_record_end(const m2_ops *ops, m2_recording **recording_out)
{
    m2_gpu *gpu = m2_gpu_of(ops);
    gpuGraphExec_t exec = NULL;
    *recording_out = NULL;
    const gpuError_t error = end_capture(gpu, &exec);
    if (error != gpuSuccess) {
        /* Once a recording is broken, every launch fails that would have been part of it. */
        gpu->error = gpu->error_before;
        m2_warn("gpu", "the step cannot be recorded (%s); every operator is launched by itself",
                gpuGetErrorString(error));
        return M2_OK;
    }
    m2_recording *recording = malloc(sizeof *recording);
    if (!recording) {
        come_in(gpu);
        gpuGraphExecDestroy(exec);
        m2_gpu_leave();
        return m2_fail(M2_ERR_MEMORY, "no memory for a recording");
    }
    recording->exec = exec;
    *recording_out = recording;
    return M2_OK;
}

static m2_status device_replay(const m2_ops *ops, m2_recording *recording)
{
    m2_gpu *gpu = m2_gpu_of(ops);
    m2_gpu_enter();
    note(gpu, gpuGraphLaunch(recording->exec, gpu->stream), "replay");
    m2_gpu_leave();
    return M2_OK;
}

static void device_recording_destroy(const m2_ops *ops, m2_recording *recording)
{
    if (!recording) return;
    come_in(m2_gpu_of(ops));
    gpuGraphExecDestroy(recording->exec);
    m2_gpu_leave();
    free(recording);
}

static m2_status device_mailbox_create(const m2_ops *ops, size_t bytes, void **host_out)
{
    m2_gpu *gpu = m2_gpu_of(ops);
    come_in(gpu);
    const gpuError_t error = gpuHostAlloc(host_out, bytes, gpuHostAllocDefault);
    if (error != gpuSuccess) gpuGetLastError();
    m2_gpu_leave();
    if (error != gpuSuccess)
        return m2_fail(M2_ERR_MEMORY, "device %d: no %zu bytes of pinned memory: %s", gpu->device,
                       bytes, gpuGetErrorString(error));
    memset(*host_out, 0, bytes);
    return M2_OK;
}

static void device_mailbox_destroy(const m2_ops *ops, void *host)
{
    if (!host) return;
    come_in(m2_gpu_of(ops));
    gpuFreeHost(host);
    m2_gpu_leave();
}

static void device_publish(const m2_ops *ops, void *host, const m2_tensor *from)
{
    m2_gpu *gpu = m2_gpu_of(ops);
    m2_gpu_enter();
    note(
        gpu,
        gpuMemcpyAsync(host, from->data, m2_tensor_bytes(from), gpuMemcpyDeviceToHost, gpu->stream),
        "publish");
    m2_gpu_leave();
}

/* ---- time ----------------------------------------------------------------------------------------- */

struct m2_timer {
    int n_marks; /* of those that are made */
    gpuEvent_t *marks;
};

static void device_timer_destroy(const m2_ops *ops, m2_timer *timer)
{
    if (!timer) return;
    come_in(m2_gpu_of(ops));
    for (int i = 0; i < timer->n_marks; i++) gpuEventDestroy(timer->marks[i]);
    m2_gpu_leave();
    free(timer->marks);
    free(timer);
}

static gpuError_t make_marks(m2_gpu *gpu, m2_timer *timer, int n_marks)
{
    gpuError_t error = gpuSuccess;
    come_in(gpu);
    while (error == gpuSuccess && timer->n_marks < n_marks) {
        error = gpuEventCreateWithFlags(&timer->marks[timer->n_marks], gpuEventDefault);
        if (error == gpuSuccess) timer->n_marks++;
    }
    if (error != gpuSuccess) gpuGetLastError();
    m2_gpu_leave();
    return error;
}

static m2_status device_timer_create(const m2_ops *ops, int n_marks, m2_timer **timer_out)
{
    m2_gpu *gpu = m2_gpu_of(ops);
    m2_timer *timer = calloc(1, sizeof *timer);
    if (timer) timer->marks = calloc((size_t)n_marks, sizeof *timer->marks);
    if (!timer || !timer->marks) {
        device_timer_destroy(ops, timer);
        return m2_fail(M2_ERR_MEMORY, "no memory for %d marks of time", n_marks);
    }
    const gpuError_t error = make_marks(gpu, timer, n_marks);
    if (error != gpuSuccess) {
        device_timer_destroy(ops, timer);
        return m2_fail(M2_ERR_INTERNAL, "device %d: no marks of time: %s", gpu->device,
                       gpuGetErrorString(error));
    }
    *timer_out = timer;
    return M2_OK;
}

static void device_timer_mark(const m2_ops *ops, m2_timer *timer, int idx)
{
    m2_gpu *gpu = m2_gpu_of(ops);
    m2_gpu_enter();
    note(gpu, gpuEventRecord(timer->marks[idx], gpu->stream), "timer");
    m2_gpu_leave();
}

static double device_timer_ms(const m2_ops *ops, const m2_timer *timer, int from, int to)
{
    m2_gpu *gpu = m2_gpu_of(ops);
    float ms = 0;
    m2_gpu_enter();
    note(gpu, gpuEventElapsedTime(&ms, timer->marks[from], timer->marks[to]), "timer");
    m2_gpu_leave();
    return (double)ms;
}

const m2_device_api m2_gpu_device = { .limits = &m2_gpu_limits,
                                      .alloc = device_alloc,
                                      .release = device_release,
                                      .wait = device_wait,
                                      .memory = device_memory,
                                      .room = device_room,
                                      .record_begin = device_record_begin,
                                      .record_end = device_record_end,
                                      .replay = device_replay,
                                      .recording_destroy = device_recording_destroy,
                                      .mailbox_create = device_mailbox_create,
                                      .mailbox_destroy = device_mailbox_destroy,
                                      .publish = device_publish,
                                      .timer_create = device_timer_create,
                                      .timer_destroy = device_timer_destroy,
                                      .timer_mark = device_timer_mark,
                                      .timer_ms = device_timer_ms };

m2_status m2_gpu_memory_open(m2_gpu *gpu)
{
    M2_TRY(staging_open(gpu));
    const m2_ops ops = { .device = gpu };
    return device_alloc(&ops, "workspace", M2_GPU_WORKSPACE_BYTES, &gpu->workspace);
}

void m2_gpu_memory_close(m2_gpu *gpu)
{
    staging_close(gpu);
    while (gpu->blocks) {
        m2_gpu_block *block = gpu->blocks;
        gpu->blocks = block->next;
        gpuFree(block->memory);
        free(block);
    }
}
