#include "support/guarded_device.h"

#include "backend/cpu/cpu.h"
#include "backend/gpu/limits.h"
#include "support/op_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define N_BLOCKS_MAX 1024

typedef struct block {
    char *memory;
    size_t bytes;
} block;

struct m2_guarded {
    m2_ops cpu;
    block blocks[N_BLOCKS_MAX];
    int is_spoiling;
    char fault[256];
};

static m2_guarded *guarded_of(const m2_ops *ops)
{
    return ops->device;
}

static void protect(m2_guarded *guarded, int access)
{
    for (int i = 0; i < N_BLOCKS_MAX; i++)
        if (guarded->blocks[i].memory)
            mprotect(guarded->blocks[i].memory, guarded->blocks[i].bytes, access);
}

static void open_memory(m2_guarded *guarded)
{
    protect(guarded, PROT_READ | PROT_WRITE);
}

static void close_memory(m2_guarded *guarded)
{
    protect(guarded, PROT_NONE);
}

static int is_inside(const m2_guarded *guarded, const void *data, size_t bytes)
{
    const uintptr_t at = (uintptr_t)data;
    for (int i = 0; i < N_BLOCKS_MAX; i++) {
        const uintptr_t begin = (uintptr_t)guarded->blocks[i].memory;
        if (begin && at >= begin && at + bytes <= begin + guarded->blocks[i].bytes) return 1;
    }
    return bytes == 0;
}

static void note(m2_guarded *guarded, const char *op, const char *what)
{
    if (!guarded->fault[0])
        snprintf(guarded->fault, sizeof guarded->fault, "%s: %s is not in the device's memory", op,
                 what);
}

/* ---- memory ---- */

static m2_status guarded_alloc(const m2_ops *ops, const char *name, size_t bytes, void **memory_out)
{
    m2_guarded *guarded = guarded_of(ops);
    const size_t page = 4096, whole = (bytes + page - 1) / page * page + page;
    block *free_block = NULL;
    for (int i = 0; i < N_BLOCKS_MAX && !free_block; i++)
        if (!guarded->blocks[i].memory) free_block = &guarded->blocks[i];
    void *memory =
        free_block ? mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
    if (memory == MAP_FAILED)
        return m2_fail(M2_ERR_MEMORY, "guarded device: %s: no memory for %zu bytes", name, bytes);
    *free_block = (block){ .memory = memory, .bytes = whole };
    *memory_out = memory;
    return M2_OK;
}

static void guarded_release(const m2_ops *ops, void *memory)
{
    m2_guarded *guarded = guarded_of(ops);
    for (int i = 0; i < N_BLOCKS_MAX && memory; i++) {
        if (guarded->blocks[i].memory != memory) continue;
        munmap(memory, guarded->blocks[i].bytes);
        guarded->blocks[i] = (block){ 0 };
    }
}

static m2_status guarded_wait(const m2_ops *ops)
{
    m2_guarded *guarded = guarded_of(ops);
    if (!guarded->fault[0]) return M2_OK;
    const m2_status status = m2_fail(M2_ERR_INTERNAL, "guarded device: %s", guarded->fault);
    guarded->fault[0] = '\0';
    return status;
}

static void guarded_memory(const m2_ops *ops, size_t *free_out, size_t *total_out)
{
    (void)ops;
    *free_out = *total_out = (size_t)8 << 30;
}

static size_t guarded_room(const m2_ops *ops)
{
    size_t free_bytes, total;
    guarded_memory(ops, &free_bytes, &total);
    return free_bytes;
}

static m2_status mailbox_create(const m2_ops *ops, size_t bytes, void **host_out)
{
    (void)ops;
    *host_out = calloc(1, bytes ? bytes : 1);
    return *host_out ? M2_OK : m2_fail(M2_ERR_MEMORY, "guarded device: no mailbox");
}

static void mailbox_destroy(const m2_ops *ops, void *host)
{
    (void)ops;
    free(host);
}

static void publish(const m2_ops *ops, void *host, const m2_tensor *from)
{
    ops->download(ops, host, from);
}

/* No recordings: every operator is a call of its own. */
static const m2_device_api guarded_device = { .limits = &m2_gpu_limits,
                                              .alloc = guarded_alloc,
                                              .release = guarded_release,
                                              .wait = guarded_wait,
                                              .memory = guarded_memory,
                                              .room = guarded_room,
                                              .mailbox_create = mailbox_create,
                                              .mailbox_destroy = mailbox_destroy,
                                              .publish = publish };

static void guarded_upload(const m2_ops *ops, m2_tensor *to, const void *from_host)
{
    m2_guarded *guarded = guarded_of(ops);
    const size_t bytes = m2_tensor_bytes(to);
    if (!is_inside(guarded, to->data, bytes)) {
        note(guarded, "upload", "where it goes");
        return;
    }
    if (bytes && is_inside(guarded, from_host, 1)) {
        note(guarded, "upload", "the host's side, taken from the device: it");
        return;
    }
    open_memory(guarded);
    memcpy(to->data, from_host, bytes);
    close_memory(guarded);
}

static void guarded_download(const m2_ops *ops, void *to_host, const m2_tensor *from)
{
    m2_guarded *guarded = guarded_of(ops);
    const size_t bytes = m2_tensor_bytes(from);
    if (!is_inside(guarded, from->data, bytes)) {
        note(guarded, "download", "where it comes from");
        return;
    }
    open_memory(guarded);
    memcpy(to_host, from->data, bytes);
    close_memory(guarded);
}

/* ---- operators ---- */

/* The highest bit of the exponent, or a high bit of a number. */
static void spoil(const m2_op_info *info, const void *args)
{
    for (int i = 0; i < info->n_fields; i++) {
        const m2_tensor *tensor = m2_field_get(&info->fields[i], args);
        const m2_field_use use = info->fields[i].use;
        if (!tensor || (use != M2_FIELD_OUT && use != M2_FIELD_INOUT)) continue;
        const size_t bytes = m2_tensor_bytes(tensor);
        if (bytes > 0) ((unsigned char *)tensor->data)[bytes - 1] ^= 0x40;
        return;
    }
}

static void guarded_call(const m2_ops *ops, m2_op_idx op, const void *args)
{
    m2_guarded *guarded = guarded_of(ops);
    const m2_op_info *info = &m2_op_infos[op];
    for (int i = 0; i < info->n_fields; i++) {
        const m2_tensor *tensor = m2_field_get(&info->fields[i], args);
        if (!tensor || is_inside(guarded, tensor->data, m2_tensor_bytes(tensor))) continue;
        note(guarded, info->name, info->fields[i].name);
        return;
    }
    open_memory(guarded);
    info->call(&guarded->cpu, args);
    if (guarded->is_spoiling) spoil(info, args);
    close_memory(guarded);
}

#define GUARDED_SLOT(name)                                                                         \
    static void guarded_##name(const m2_ops *ops, const m2_##name##_args *args)                    \
    {                                                                                              \
        guarded_call(ops, M2_OP_##name, args);                                                     \
    }
M2_OPS(GUARDED_SLOT)
#undef GUARDED_SLOT

m2_status m2_guarded_open(m2_pool *pool, m2_guarded **guarded_out)
{
    m2_guarded *guarded = calloc(1, sizeof *guarded);
    if (!guarded) return m2_fail(M2_ERR_MEMORY, "guarded device: no memory");
    const m2_status status = m2_ops_init_cpu(&guarded->cpu, pool, M2_ISA_BEST);
    if (status != M2_OK) {
        free(guarded);
        return status;
    }
    *guarded_out = guarded;
    return M2_OK;
}

void m2_guarded_spoil(m2_guarded *guarded)
{
    guarded->is_spoiling = 1;
}

void m2_guarded_close(m2_guarded *guarded)
{
    if (!guarded) return;
    for (int i = 0; i < N_BLOCKS_MAX; i++)
        if (guarded->blocks[i].memory) munmap(guarded->blocks[i].memory, guarded->blocks[i].bytes);
    free(guarded);
}

void m2_ops_init_guarded(m2_ops *ops, m2_guarded *guarded)
{
    *ops = (m2_ops){ .backend = "guarded",
                     .isa = guarded->cpu.isa,
                     .device = guarded,
                     .device_api = &guarded_device,
                     .upload = guarded_upload,
                     .download = guarded_download };
#define SET_SLOT(name) ops->name = guarded_##name;
    M2_OPS(SET_SLOT)
#undef SET_SLOT
}
