#include "io/checkpoint_made_up.h"

#include "core/rng.h"
#include "io/checkpoint_parts.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Values made once and repeated.  A prime number of them: a row of a matrix, whose length is not one,
 * never meets the same values at the same places as the row before. */
#define TILE ((int64_t)1048573)
/* Tensors begin at N_STARTS places, PLACE bytes apart. */
#define PLACE    ((size_t)64)
#define N_STARTS ((size_t)16384)
#define STRIDE   ((size_t)5003) /* odd: all places are taken in turn */

m2_status m2_made_up_create(const char *name, m2_checkpoint **checkpoint_out)
{
    m2_checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    if (checkpoint) checkpoint->path = strdup(name);
    if (!checkpoint || !checkpoint->path) {
        m2_checkpoint_close(checkpoint);
        return m2_fail(M2_ERR_MEMORY, "%s: no memory to make it up", name);
    }
    *checkpoint_out = checkpoint;
    return M2_OK;
}

m2_status m2_made_up_add(m2_checkpoint *checkpoint, const char *name, m2_dtype dtype, int n_dims,
                         const int64_t *shape)
{
    m2_ckpt_tensor tensor = { .dtype = dtype, .n_dims = n_dims, .file = checkpoint->path };
    size_t bytes;
    if (dtype >= M2_MADE_UP_TYPES)
        return m2_fail(M2_ERR_UNSUPPORTED, "%s: '%s' is %s; floats alone are made up",
                       checkpoint->path, name, m2_dtype_name(dtype));
    assert(n_dims >= 0 && n_dims <= M2_MAX_DIMS);
    for (int i = 0; i < n_dims; i++) {
        if (shape[i] < 0)
            return m2_fail(M2_ERR_ARG, "%s: '%s' has a size below 0", checkpoint->path, name);
        tensor.shape[i] = shape[i];
    }
    if (!m2_ckpt_shape_bytes(shape, n_dims, dtype, &tensor.count, &bytes))
        return m2_fail(M2_ERR_ARG, "%s: '%s' is too large", checkpoint->path, name);
    int64_t row = 1;
    for (int i = n_dims - 1; i >= 0; i--) {
        tensor.stride[i] = row;
        if (shape[i] > 0) row *= shape[i];
    }
    char *kept = m2_ckpt_text(checkpoint, strlen(name) + 1);
    if (!kept) return m2_fail(M2_ERR_MEMORY, "%s: no memory for its names", checkpoint->path);
    tensor.name = strcpy(kept, name);
    return m2_ckpt_append(checkpoint, &tensor);
}

static void repeat(char *block, size_t bytes, const char *tile, size_t tile_bytes)
{
    for (size_t begin = 0; begin < bytes; begin += tile_bytes) {
        const size_t left = bytes - begin;
        memcpy(block + begin, tile, left < tile_bytes ? left : tile_bytes);
    }
}

static size_t block_bytes(size_t largest)
{
    return largest + PLACE * N_STARTS;
}

/* The block of one type, for tensors of up to `bytes`. */
static m2_status make_block(m2_checkpoint *checkpoint, m2_dtype dtype, size_t bytes,
                            const float *values)
{
    const size_t tile_bytes = (size_t)TILE * m2_dtype_bytes(dtype);
    const size_t whole = block_bytes(bytes);
    char *tile = malloc(tile_bytes), *block = malloc(whole);
    if (!tile || !block) {
        free(tile);
        free(block);
        return m2_fail(M2_ERR_MEMORY, "%s: no memory for %.0f MiB of values", checkpoint->path,
                       (double)whole / 1048576.0);
    }
    m2_convert(values, M2_F32, tile, dtype, TILE);
    repeat(block, whole, tile, tile_bytes);
    free(tile);
    checkpoint->made_up[dtype] = block;
    return M2_OK;
}

typedef struct type_sizes {
    size_t largest[M2_MADE_UP_TYPES]; /* bytes of one tensor */
    int is_there[M2_MADE_UP_TYPES];
} type_sizes;

static type_sizes sizes_of(const m2_checkpoint *checkpoint)
{
    type_sizes sizes = { { 0 }, { 0 } };
    for (int64_t i = 0; i < checkpoint->n_tensors; i++) {
        const m2_ckpt_tensor *tensor = &checkpoint->tensors[i];
        const size_t bytes = (size_t)tensor->count * m2_dtype_bytes(tensor->dtype);
        sizes.is_there[tensor->dtype] = 1;
        if (bytes > sizes.largest[tensor->dtype]) sizes.largest[tensor->dtype] = bytes;
    }
    return sizes;
}

/* The blocks of all types, the values they are made of and a tile of the widest type. */
size_t m2_made_up_bytes(const m2_checkpoint *checkpoint)
{
    const type_sizes sizes = sizes_of(checkpoint);
    size_t bytes = 2 * (size_t)TILE * sizeof(float);
    for (int t = 0; t < M2_MADE_UP_TYPES; t++)
        if (sizes.is_there[t]) bytes += block_bytes(sizes.largest[t]);
    return bytes;
}

static m2_status make_blocks(m2_checkpoint *checkpoint, const float *values)
{
    const type_sizes sizes = sizes_of(checkpoint);
    for (int t = 0; t < M2_MADE_UP_TYPES; t++)
        if (sizes.is_there[t])
            M2_TRY(make_block(checkpoint, (m2_dtype)t, sizes.largest[t], values));
    return M2_OK;
}

static m2_status make_values(m2_checkpoint *checkpoint, double scale, uint64_t seed)
{
    m2_rng rng;
    M2_TRY(m2_rng_init(&rng, seed, M2_RNG_GRID_DEFAULT));
    float *values = malloc((size_t)TILE * sizeof *values);
    if (!values) return m2_fail(M2_ERR_MEMORY, "%s: no memory for values", checkpoint->path);
    m2_rng_normal(&rng, NULL, values, TILE);
    for (int64_t i = 0; i < TILE; i++) values[i] *= (float)scale;
    const m2_status status = make_blocks(checkpoint, values);
    free(values);
    return status;
}

m2_status m2_made_up_finish(m2_checkpoint *checkpoint, double scale, uint64_t seed)
{
    assert(!checkpoint->by_name);
    M2_TRY(make_values(checkpoint, scale, seed));
    for (int64_t i = 0; i < checkpoint->n_tensors; i++) {
        m2_ckpt_tensor *tensor = &checkpoint->tensors[i];
        const char *block = checkpoint->made_up[tensor->dtype];
        tensor->source = block + (size_t)i * STRIDE % N_STARTS * PLACE;
        m2_ckpt_set_data(tensor);
    }
    return m2_ckpt_sort_names(checkpoint, 0, checkpoint->path, &checkpoint->by_name);
}
