#include "support/mirror_ops.h"

#include "support/op_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTES 64
#define GUARD_VALUE 0xa5
#define ALIGN       64

/* Memory of one tensor, or of several that begin at the same byte. */
typedef struct region {
    char *host;
    size_t bytes;
    size_t shift;  /* from a multiple of ALIGN */
    size_t offset; /* in the image             */
    int is_input, is_output, is_scratch;
    const char *name;
    void *memory; /* its own, or NULL */
} region;

struct m2_mirror {
    const m2_ops *device;
    int use_own_memory, is_shifted;
    void *memory; /* [bytes_max] on the device */
    char *image, *result;
    size_t bytes_max, bytes;
    region regions[M2_OP_FIELDS_MAX];
    int n_regions;
    char fault[512], told[512];
};

m2_status m2_mirror_open(const m2_ops *device, m2_mirror **mirror_out)
{
    m2_mirror *mirror = calloc(1, sizeof *mirror);
    if (!mirror) return m2_fail(M2_ERR_MEMORY, "mirror: no memory");
    mirror->device = device;
    *mirror_out = mirror;
    return M2_OK;
}

static void release_block(m2_mirror *mirror)
{
    if (mirror->memory) mirror->device->device_api->release(mirror->device, mirror->memory);
    free(mirror->image);
    free(mirror->result);
    mirror->memory = NULL;
    mirror->image = mirror->result = NULL;
    mirror->bytes_max = 0;
}

void m2_mirror_close(m2_mirror *mirror)
{
    if (!mirror) return;
    release_block(mirror);
    free(mirror);
}

void m2_mirror_use_own_memory(m2_mirror *mirror)
{
    mirror->use_own_memory = 1;
}

void m2_mirror_shift(m2_mirror *mirror, int is_on)
{
    mirror->is_shifted = is_on;
}

const char *m2_mirror_fault(m2_mirror *mirror)
{
    if (!mirror->fault[0]) return NULL;
    memcpy(mirror->told, mirror->fault, sizeof mirror->told);
    mirror->fault[0] = '\0';
    return mirror->told;
}

static void note(m2_mirror *mirror, const char *op, const char *what, const char *detail)
{
    if (!mirror->fault[0])
        snprintf(mirror->fault, sizeof mirror->fault, "%s: %s%s", op, what, detail);
}

/* ---- laying the tensors of a call out ---- */

static region *region_of(m2_mirror *mirror, const m2_tensor *tensor)
{
    for (int i = 0; i < mirror->n_regions; i++)
        if (mirror->regions[i].host == tensor->data) return &mirror->regions[i];
    return NULL;
}

static void take_fields(m2_mirror *mirror, const m2_op_info *info, const void *args)
{
    mirror->n_regions = 0;
    for (int i = 0; i < info->n_fields; i++) {
        const m2_op_field *field = &info->fields[i];
        const m2_tensor *tensor = m2_field_get(field, args);
        if (!tensor) continue;
        region *r = region_of(mirror, tensor);
        if (!r) {
            r = &mirror->regions[mirror->n_regions++];
            *r = (region){ .host = tensor->data, .name = field->name };
        }
        const size_t bytes = m2_tensor_bytes(tensor);
        const size_t element = m2_dtype_bytes(tensor->dtype);
        if (bytes > r->bytes) r->bytes = bytes;
        if (mirror->is_shifted && element > r->shift) r->shift = element;
        r->is_input |= field->use == M2_FIELD_IN || field->use == M2_FIELD_INOUT;
        r->is_output |= field->use == M2_FIELD_OUT || field->use == M2_FIELD_INOUT;
        r->is_scratch |= field->use == M2_FIELD_SCRATCH;
    }
    mirror->bytes = 0;
    for (int i = 0; i < mirror->n_regions; i++) {
        region *r = &mirror->regions[i];
        r->shift = ((uintptr_t)r->host + r->shift) % ALIGN;
        r->offset = mirror->bytes + GUARD_BYTES + r->shift;
        mirror->bytes = (r->offset + r->bytes + GUARD_BYTES + ALIGN - 1) / ALIGN * ALIGN;
    }
}

static m2_status reserve(m2_mirror *mirror)
{
    const m2_ops *device = mirror->device;
    if (mirror->bytes > mirror->bytes_max) {
        release_block(mirror);
        const size_t bytes = mirror->bytes + mirror->bytes / 4;
        mirror->image = malloc(bytes);
        mirror->result = malloc(bytes);
        if (!mirror->image || !mirror->result)
            return m2_fail(M2_ERR_MEMORY, "mirror: no memory for %zu bytes", bytes);
        if (!mirror->use_own_memory)
            M2_TRY(device->device_api->alloc(device, "mirror", bytes, &mirror->memory));
        mirror->bytes_max = bytes;
    }
    for (int i = 0; i < mirror->n_regions && mirror->use_own_memory; i++) {
        region *r = &mirror->regions[i];
        M2_TRY(device->device_api->alloc(device, r->name, r->shift + r->bytes, &r->memory));
    }
    return M2_OK;
}

static void fill_image(m2_mirror *mirror)
{
    memset(mirror->image, GUARD_VALUE, mirror->bytes);
    for (int i = 0; i < mirror->n_regions; i++) {
        const region *r = &mirror->regions[i];
        if (r->is_input)
            memcpy(mirror->image + r->offset, r->host, r->bytes);
        else
            memset(mirror->image + r->offset, 0xff, r->bytes);
    }
}

static void *device_address(const m2_mirror *mirror, const region *r)
{
    if (r->memory) return (char *)r->memory + r->shift;
    return (char *)mirror->memory + r->offset;
}

static m2_tensor bytes_at(void *memory, size_t bytes)
{
    return m2_tensor_over(memory, M2_U8, (int64_t)bytes);
}

/* The whole image in one copy, or tensor by tensor. */
static void copy_image(m2_mirror *mirror, int to_device)
{
    const m2_ops *device = mirror->device;
    if (!mirror->use_own_memory) {
        m2_tensor all = bytes_at(mirror->memory, mirror->bytes);
        if (to_device)
            device->upload(device, &all, mirror->image);
        else
            device->download(device, mirror->result, &all);
        return;
    }
    if (!to_device) memcpy(mirror->result, mirror->image, mirror->bytes);
    for (int i = 0; i < mirror->n_regions; i++) {
        const region *r = &mirror->regions[i];
        m2_tensor tensor = bytes_at(device_address(mirror, r), r->bytes);
        if (r->bytes == 0) continue;
        if (to_device)
            device->upload(device, &tensor, mirror->image + r->offset);
        else
            device->download(device, mirror->result + r->offset, &tensor);
    }
}

/* ---- what came back ---- */

static void check_untouched(m2_mirror *mirror, const char *op, size_t begin, size_t end,
                            const char *what, const char *name)
{
    for (size_t i = begin; i < end; i++) {
        if (mirror->image[i] == mirror->result[i]) continue;
        char detail[128];
        snprintf(detail, sizeof detail, "%s of %s, byte %zu of %zu", what, name, i - begin,
                 end - begin);
        note(mirror, op, "wrote ", detail);
        return;
    }
}

static void take_results(m2_mirror *mirror, const char *op)
{
    size_t end = 0;
    const char *before = "the first tensor";
    for (int i = 0; i < mirror->n_regions; i++) {
        const region *r = &mirror->regions[i];
        check_untouched(mirror, op, end, r->offset, "behind the end", before);
        end = r->offset + r->bytes;
        before = r->name;
        if (r->is_output)
            memcpy(r->host, mirror->result + r->offset, r->bytes);
        else if (!r->is_scratch)
            check_untouched(mirror, op, r->offset, end, "the input", r->name);
    }
    check_untouched(mirror, op, end, mirror->bytes, "behind the end", before);
}

/* The same call with tensors of the device. */
static void call_on_device(m2_mirror *mirror, const m2_op_info *info, const void *args)
{
    _Alignas(16) char copy[M2_OP_ARGS_BYTES_MAX];
    m2_tensor tensors[M2_OP_FIELDS_MAX];
    memcpy(copy, args, info->args_bytes);
    for (int i = 0; i < info->n_fields; i++) {
        const m2_tensor *tensor = m2_field_get(&info->fields[i], args);
        if (!tensor) continue;
        tensors[i] = *tensor;
        tensors[i].data = device_address(mirror, region_of(mirror, tensor));
        m2_field_set(&info->fields[i], copy, &tensors[i]);
    }
    info->call(mirror->device, copy);
}

static void mirror_call(const m2_ops *ops, m2_op_idx op, const void *args)
{
    m2_mirror *mirror = ops->device;
    const m2_op_info *info = &m2_op_infos[op];
    const m2_ops *device = mirror->device;
    take_fields(mirror, info, args);
    m2_status status = reserve(mirror);
    if (status == M2_OK) {
        fill_image(mirror);
        copy_image(mirror, 1);
        call_on_device(mirror, info, args);
        status = m2_device_wait(device);
    }
    if (status == M2_OK) {
        copy_image(mirror, 0);
        status = m2_device_wait(device);
    }
    if (status == M2_OK)
        take_results(mirror, info->name);
    else
        note(mirror, info->name, "", m2_last_error());
    for (int i = 0; i < mirror->n_regions; i++)
        if (mirror->regions[i].memory)
            device->device_api->release(device, mirror->regions[i].memory);
}

#define MIRROR_SLOT(name)                                                                          \
    static void mirror_##name(const m2_ops *ops, const m2_##name##_args *args)                     \
    {                                                                                              \
        mirror_call(ops, M2_OP_##name, args);                                                      \
    }
M2_OPS(MIRROR_SLOT)
#undef MIRROR_SLOT

static void host_upload(const m2_ops *ops, m2_tensor *to, const void *from_host)
{
    (void)ops;
    memcpy(to->data, from_host, m2_tensor_bytes(to));
}

static void host_download(const m2_ops *ops, void *to_host, const m2_tensor *from)
{
    (void)ops;
    memcpy(to_host, from->data, m2_tensor_bytes(from));
}

void m2_ops_init_mirror(m2_ops *ops, m2_mirror *mirror)
{
    *ops = (m2_ops){ .backend = mirror->device->backend,
                     .isa = mirror->device->isa,
                     .device = mirror,
                     .device_api = &m2_host_device,
                     .upload = host_upload,
                     .download = host_download };
#define SET_SLOT(name) ops->name = mirror_##name;
    M2_OPS(SET_SLOT)
#undef SET_SLOT
}
