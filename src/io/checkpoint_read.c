/* Copying values out of a checkpoint: any stride, any alignment, any element type. */
#include "io/checkpoint.h"

#define BUFFER_BYTES 4096

/* `n` elements that lie `stride` elements apart, converted, through an aligned buffer: mapped bytes
 * may lie at any address. */
static void read_row(const unsigned char *from, int64_t stride, m2_dtype from_dtype,
                     unsigned char *to, m2_dtype to_dtype, int64_t n)
{
    _Alignas(8) unsigned char buffer[BUFFER_BYTES];
    const size_t size = m2_dtype_bytes(from_dtype), to_size = m2_dtype_bytes(to_dtype);
    if (stride == 1 && from_dtype == to_dtype) {
        memcpy(to, from, (size_t)n * size);
        return;
    }
    const int64_t at_once = (int64_t)(BUFFER_BYTES / size);
    while (n > 0) {
        const int64_t part = n < at_once ? n : at_once;
        if (stride == 1)
            memcpy(buffer, from, (size_t)part * size);
        else
            for (int64_t i = 0; i < part; i++)
                memcpy(buffer + (size_t)i * size, from + (size_t)(i * stride) * size, size);
        m2_convert(buffer, from_dtype, to, to_dtype, part);
        from += (size_t)(part * stride) * size;
        to += (size_t)part * to_size;
        n -= part;
    }
}

static void read_dims(const m2_ckpt_tensor *tensor, int dim, const unsigned char *from,
                      m2_dtype dtype, unsigned char **to)
{
    const size_t size = m2_dtype_bytes(tensor->dtype);
    if (dim == tensor->n_dims - 1) {
        read_row(from, tensor->stride[dim], tensor->dtype, *to, dtype, tensor->shape[dim]);
        *to += (size_t)tensor->shape[dim] * m2_dtype_bytes(dtype);
        return;
    }
    for (int64_t i = 0; i < tensor->shape[dim]; i++)
        read_dims(tensor, dim + 1, from + (size_t)(i * tensor->stride[dim]) * size, dtype, to);
}

void m2_checkpoint_read(const m2_ckpt_tensor *tensor, m2_dtype dtype, void *to)
{
    if (tensor->count == 0) return;
    if (tensor->data) {
        m2_convert(tensor->data, tensor->dtype, to, dtype, tensor->count);
        return;
    }
    int is_plain = 1;
    int64_t row = 1;
    for (int i = tensor->n_dims - 1; i >= 0; i--) {
        if (tensor->shape[i] != 1 && tensor->stride[i] != row) is_plain = 0;
        row *= tensor->shape[i];
    }
    unsigned char *next = to;
    if (is_plain)
        read_row(tensor->source, 1, tensor->dtype, next, dtype, tensor->count);
    else
        read_dims(tensor, 0, tensor->source, dtype, &next);
}
