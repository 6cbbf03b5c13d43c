#include "model/weights.h"

#include "backend/device.h"
#include "io/fault_list.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES   512
#define UPLOAD_BYTES ((size_t)16 << 20)

struct m2_weight_binder {
    const m2_checkpoint *checkpoint;
    const int64_t *dims;
    int n_dims;
    const m2_ops *ops;
    m2_arena *arena;
    unsigned char *is_asked; /* [n_tensors]: some row names it, or its prefix is ignored */
    m2_fault_list missing, misfit;
    m2_status status; /* a failure other than a fault of the checkpoint */
};

static int resolve_shape(const m2_weight_desc *desc, const int64_t *dims, int64_t *shape_out)
{
    int n = 0;
    while (n < M2_MAX_DIMS && desc->shape[n] != 0) {
        const int size = desc->shape[n];
        shape_out[n++] = size < 0 ? dims[-size - 1] : size;
    }
    return n;
}

static void join_name(char *name, const char *prefix, const char *rest)
{
    const int bytes = snprintf(name, NAME_BYTES, "%s%s", prefix, rest);
    assert(bytes > 0 && bytes < NAME_BYTES); /* tables are ours */
    (void)bytes;
}

static char *describe(char *text, size_t bytes, m2_dtype dtype, int n_dims, const int64_t *shape)
{
    const m2_tensor tensor = m2_tensor_wrap(NULL, dtype, n_dims, shape);
    const size_t used = (size_t)snprintf(text, bytes, "%s ", m2_dtype_name(dtype));
    m2_tensor_shape_text(&tensor, text + used, bytes - used);
    return text;
}

m2_status m2_weight_binder_create(const m2_checkpoint *checkpoint, const int64_t *dims, int n_dims,
                                  const m2_ops *ops, m2_arena *arena, m2_weight_binder **binder_out)
{
    const int64_t n = m2_checkpoint_n_tensors(checkpoint);
    m2_weight_binder *binder = calloc(1, sizeof *binder);
    if (binder) binder->is_asked = calloc((size_t)(n > 0 ? n : 1), 1);
    if (!binder || !binder->is_asked) {
        m2_weight_binder_destroy(binder);
        return m2_fail(M2_ERR_MEMORY, "%s: no memory to bind %lld tensors",
                       m2_checkpoint_path(checkpoint), (long long)n);
    }
    binder->checkpoint = checkpoint;
    binder->dims = dims;
    binder->n_dims = n_dims;
    binder->ops = ops;
    binder->arena = arena;
    *binder_out = binder;
    return M2_OK;
}

void m2_weight_binder_destroy(m2_weight_binder *binder)
{
    if (!binder) return;
    free(binder->is_asked);
    free(binder);
}

/* ---- bringing values in ----------------------------------------------------------------------- */

static int is_float(m2_dtype dtype)
{
    return dtype == M2_F32 || dtype == M2_BF16 || dtype == M2_F16 || dtype == M2_F64;
}

/* To a device in parts through a buffer of bounded size.  Values that are not laid out plainly in
 * the file go in one part: of the released files only small ones are like that. */
static m2_status upload(m2_weight_binder *binder, const m2_ckpt_tensor *from, m2_tensor *to)
{
    const m2_ops *const ops = binder->ops;
    if (from->data && from->dtype == to->dtype) {
        ops->upload(ops, to, from->data);
        return M2_OK;
    }
    const size_t size = m2_dtype_bytes(to->dtype);
    const int64_t in_part = (int64_t)(UPLOAD_BYTES / size);
    const int64_t at_once = from->data && from->count > in_part ? in_part : from->count;
    void *buffer = malloc((size_t)at_once * size);
    if (!buffer)
        return m2_fail(M2_ERR_MEMORY, "%s: no memory to convert '%s'", from->file, from->name);
    const m2_tensor flat = m2_tensor_over(to->data, to->dtype, from->count);
    for (int64_t begin = 0; begin < from->count; begin += at_once) {
        const int64_t end = begin + at_once < from->count ? begin + at_once : from->count;
        m2_tensor part = m2_tensor_rows(&flat, begin, end);
        if (from->data)
            m2_convert((const char *)from->data + (size_t)begin * m2_dtype_bytes(from->dtype),
                       from->dtype, buffer, to->dtype, end - begin);
        else
            m2_checkpoint_read(from, to->dtype, buffer);
        ops->upload(ops, &part, buffer);
    }
    free(buffer);
    return M2_OK;
}

static void bring_in(m2_weight_binder *binder, const m2_ckpt_tensor *from, m2_tensor *to)
{
    const m2_ops *const ops = binder->ops;
    if (m2_device_is_host(ops) && from->data && from->dtype == to->dtype) {
        to->data = (void *)(uintptr_t)from->data; /* weights are only read */
        return;
    }
    /* The copy is taken from the arena even after a fault, so that a plan and a run agree. */
    *to = m2_tensor_new(binder->arena, to->dtype, to->n_dims, to->shape);
    if (ops->is_measuring || from->count == 0 || binder->status != M2_OK) return;
    if (m2_device_is_host(ops))
        m2_checkpoint_read(from, to->dtype, to->data);
    else
        binder->status = upload(binder, from, to);
}

/* ---- rows and faults ---------------------------------------------------------------------------- */

static int has_shape(const m2_ckpt_tensor *tensor, int n_dims, const int64_t *shape)
{
    if (tensor->n_dims != n_dims) return 0;
    for (int i = 0; i < n_dims; i++)
        if (tensor->shape[i] != shape[i]) return 0;
    return 1;
}

static void bind_row(m2_weight_binder *binder, const m2_weight_desc *desc, const char *prefix,
                     m2_tensor *field)
{
    char name[NAME_BYTES], wanted[200], got[200];
    int64_t shape[M2_MAX_DIMS];
    join_name(name, prefix, desc->name);
    const int n_dims = resolve_shape(desc, binder->dims, shape);
    *field = m2_tensor_wrap(NULL, desc->dtype, n_dims, shape);

    const m2_ckpt_tensor *tensor = m2_checkpoint_find(binder->checkpoint, name);
    describe(wanted, sizeof wanted, desc->dtype, n_dims, shape);
    if (!tensor) {
        if (!(desc->flags & M2_WEIGHT_OPTIONAL))
            m2_fault_add(&binder->missing, "missing '%s' %s", name, wanted);
        return;
    }
    binder->is_asked[tensor - m2_checkpoint_at(binder->checkpoint, 0)] = 1;
    const int fits_type =
        tensor->dtype == desc->dtype || (is_float(tensor->dtype) && is_float(desc->dtype));
    if (!fits_type || !has_shape(tensor, n_dims, shape)) {
        m2_fault_add(&binder->misfit, "'%s' is %s, must be %s", name,
                     describe(got, sizeof got, tensor->dtype, tensor->n_dims, tensor->shape),
                     wanted);
        return;
    }
    bring_in(binder, tensor, field);
}

void m2_weights_bind(m2_weight_binder *binder, const m2_weight_desc *table, int n_rows,
                     const char *prefix, void *fields)
{
    for (int i = 0; i < n_rows; i++) {
        for (int d = 0; d < M2_MAX_DIMS && table[i].shape[d] != 0; d++)
            assert(table[i].shape[d] > 0 || -table[i].shape[d] <= binder->n_dims);
        bind_row(binder, &table[i], prefix, (m2_tensor *)((char *)fields + table[i].offset));
    }
}

void m2_weight_binder_ignore(m2_weight_binder *binder, const char *prefix)
{
    const int64_t n = m2_checkpoint_n_tensors(binder->checkpoint);
    for (int64_t i = 0; i < n; i++) {
        const char *name = m2_checkpoint_at(binder->checkpoint, i)->name;
        if (strncmp(name, prefix, strlen(prefix)) == 0) binder->is_asked[i] = 1;
    }
}

static void find_unexpected(const m2_weight_binder *binder, m2_fault_list *unexpected)
{
    const int64_t n = m2_checkpoint_n_tensors(binder->checkpoint);
    char got[200];
    for (int64_t i = 0; i < n; i++) {
        if (binder->is_asked[i]) continue;
        const m2_ckpt_tensor *tensor = m2_checkpoint_at(binder->checkpoint, i);
        m2_fault_add(unexpected, "unexpected '%.200s' %s", tensor->name,
                     describe(got, sizeof got, tensor->dtype, tensor->n_dims, tensor->shape));
    }
}

/* "model-00031-of-00056.safetensors": one shard was passed where its folder was meant. */
static int is_shard_name(const char *path)
{
    const char *of = strstr(path, "-of-");
    if (!of || of - path < 5) return 0;
    for (int i = 1; i <= 5; i++)
        if (of[-i] < '0' || of[-i] > '9') return 0;
    return 1;
}

static m2_status report(const m2_weight_binder *binder, const m2_fault_list *unexpected,
                        const char *what)
{
    const m2_fault_list *const lists[] = { &binder->missing, &binder->misfit, unexpected };
    const char *const path = m2_checkpoint_path(binder->checkpoint);
    int n_lists = 0;
    for (int i = 0; i < 3; i++) n_lists += lists[i]->n > 0;
    char text[3][M2_FAULT_BYTES_MAX] = { "", "", "" };
    for (int i = 0; i < 3; i++)
        if (lists[i]->n > 0)
            m2_fault_text(lists[i], M2_FAULT_LINES_MAX / n_lists, text[i],
                          (size_t)(M2_FAULT_BYTES_MAX / n_lists));
    return m2_fail(
        M2_ERR_MODEL,
        "%.300s: does not fit %s: %d missing, %d of another shape or type, %d unexpected:%s%s%s\n"
        "%s`magi2 inspect %.200s` lists what it holds",
        path, what, lists[0]->n, lists[1]->n, lists[2]->n, text[0], text[1], text[2],
        is_shard_name(path) ? "this is one shard of several: pass its folder; " : "", path);
}

m2_status m2_weight_binder_finish(m2_weight_binder *binder, const char *what)
{
    m2_fault_list unexpected = { 0 };
    find_unexpected(binder, &unexpected);
    if (binder->missing.n + binder->misfit.n + unexpected.n > 0)
        return report(binder, &unexpected, what);
    return binder->status;
}

void m2_weights_describe(const m2_weight_desc *table, int n_rows, const char *prefix,
                         const int64_t *dims, m2_weight_visit *row, void *user)
{
    for (int i = 0; i < n_rows; i++) {
        char name[NAME_BYTES];
        int64_t shape[M2_MAX_DIMS];
        join_name(name, prefix, table[i].name);
        const int n_dims = resolve_shape(&table[i], dims, shape);
        row(user, name, table[i].dtype, n_dims, shape, table[i].flags);
    }
}
