/* checkpoint_parts.h - the inside of an open checkpoint, for the readers of each format.
 *
 * A reader maps its file, appends tensors whose names and extents it has checked, and leaves the
 * index of names to m2_checkpoint_open.
 */
#ifndef M2_IO_CHECKPOINT_PARTS_H
#define M2_IO_CHECKPOINT_PARTS_H

#include "io/checkpoint.h"
#include "io/map.h"

#include <stddef.h>

#define M2_INDEX_BYTES_MAX ((size_t)16 << 20)

/* Memory that lives as long as the checkpoint, mostly names: blocks of doubling size. */
typedef struct m2_text_block {
    struct m2_text_block *next;
    size_t used, room;
    char text[];
} m2_text_block;

typedef struct m2_ckpt_metadata {
    const char *key, *value;
} m2_ckpt_metadata;

/* The floating types: M2_F32 to M2_F64. */
#define M2_MADE_UP_TYPES 4

struct m2_checkpoint {
    char *path;
    m2_map **maps;
    int n_maps, room_maps;
    m2_ckpt_tensor *tensors;
    int64_t n_tensors, room_tensors;
    int64_t *by_name; /* [n_tensors] indices, by strcmp of the names */
    m2_ckpt_metadata *metadata;
    int64_t n_metadata, room_metadata;
    m2_text_block *texts;
    void *made_up[M2_MADE_UP_TYPES]; /* values by type of a checkpoint without a file */
};

/* Grow `array` (of `size`-byte elements, *room of them) so that it holds `wanted`.
 * Errors  M2_ERR_MEMORY naming `path` */
m2_status m2_ckpt_grow(void **array, int64_t *room, int64_t wanted, size_t size, const char *path);

/* [bytes], uninitialised; NULL without memory. */
char *m2_ckpt_text(m2_checkpoint *checkpoint, size_t bytes);

/* Map the file and keep the map in the checkpoint. */
m2_status m2_ckpt_map(m2_checkpoint *checkpoint, const char *path, const m2_map **map_out);

m2_status m2_ckpt_append(m2_checkpoint *checkpoint, const m2_ckpt_tensor *tensor);

/* Count and byte size of a shape, 0 if either overflows.  Zero sizes do not hide an overflow of the
 * others: code that walks rows multiplies those alone. */
int m2_ckpt_shape_bytes(const int64_t *shape, int n_dims, m2_dtype dtype, int64_t *count_out,
                        size_t *bytes_out);

/* Sorted indices by name of the tensors [first, n_tensors), malloc'd; a name met twice is an error
 * that names `path`. */
m2_status m2_ckpt_sort_names(const m2_checkpoint *checkpoint, int64_t first, const char *path,
                             int64_t **sorted_out);

/* Set `data` where the values lie in row-major order and aligned. */
void m2_ckpt_set_data(m2_ckpt_tensor *tensor);

/* Bytes of the UTF-8 character at `text`, 0 if there is none. */
int m2_ckpt_utf8_bytes(const unsigned char *text, size_t left);

/* The error for a file that is no checkpoint at all: empty, a Git-LFS pointer, a web page ...  Gives
 * M2_OK for a file that is none of these. */
m2_status m2_ckpt_refuse_kinds(const m2_map *map);

/* Read the tensors of one safetensors file. */
m2_status m2_safetensors_add(m2_checkpoint *checkpoint, const m2_map *map);

/* Read the shards that an index names; the index alone says which file a tensor comes from. */
m2_status m2_sharded_add(m2_checkpoint *checkpoint, const char *index_path);

/* Read the tensors of a torch zip file. */
m2_status m2_torch_zip_add(m2_checkpoint *checkpoint, const m2_map *map);

#endif
