#include "core/tensor.h"

#include <assert.h>
#include <stdio.h>

int64_t m2_tensor_count(const m2_tensor *tensor)
{
    int64_t count = 1;
    for (int i = 0; i < tensor->n_dims; i++) count *= tensor->shape[i];
    return count;
}

size_t m2_tensor_bytes(const m2_tensor *tensor)
{
    return (size_t)m2_tensor_count(tensor) * m2_dtype_bytes(tensor->dtype);
}

char *m2_tensor_shape_text(const m2_tensor *tensor, char *text, size_t bytes)
{
    size_t used = (size_t)snprintf(text, bytes, "[");
    for (int i = 0; i < tensor->n_dims && used < bytes; i++) {
        used += (size_t)snprintf(text + used, bytes - used, i ? ", %lld" : "%lld",
                                 (long long)tensor->shape[i]);
    }
    if (used < bytes) snprintf(text + used, bytes - used, "]");
    return text;
}

m2_tensor m2_tensor_wrap(void *data, m2_dtype dtype, int n_dims, const int64_t *shape)
{
    assert(n_dims >= 0 && n_dims <= M2_MAX_DIMS);
    m2_tensor tensor = { .data = data, .dtype = dtype, .n_dims = n_dims };
    for (int i = 0; i < n_dims; i++) tensor.shape[i] = shape[i];
    return tensor;
}

m2_tensor m2_tensor_new(m2_arena *arena, m2_dtype dtype, int n_dims, const int64_t *shape)
{
    m2_tensor tensor = m2_tensor_wrap(NULL, dtype, n_dims, shape);
    const size_t count = (size_t)m2_tensor_count(&tensor);
    tensor.data = m2_arena_alloc(arena, m2_arena_array_bytes(count, m2_dtype_bytes(dtype)));
    return tensor;
}

m2_tensor m2_tensor_rows(const m2_tensor *tensor, int64_t begin, int64_t end)
{
    assert(tensor->n_dims >= 1 && begin >= 0 && begin <= end && end <= tensor->shape[0]);
    m2_tensor rows = *tensor;
    int64_t row_count = 1;
    for (int i = 1; i < tensor->n_dims; i++) row_count *= tensor->shape[i];
    const uintptr_t offset = (uintptr_t)(begin * row_count) * m2_dtype_bytes(tensor->dtype);
    rows.data = (void *)((uintptr_t)tensor->data + offset);
    rows.shape[0] = end - begin;
    return rows;
}
