/* checkpoint.h - files of named tensors, opened for reading, whatever their format.
 *
 * One interface over safetensors (a single file, or shards with an index) and torch zip
 * checkpoints (.pth, .ckpt).  Files are memory-mapped; names, shapes, types and extents are checked
 * when it is opened, values are touched when read.  Every byte of a file is taken as hostile.
 *
 * Threads  an open checkpoint is read-only and may be read from many threads.
 */
#ifndef M2_IO_CHECKPOINT_H
#define M2_IO_CHECKPOINT_H

#include "core/status.h"
#include "core/tensor.h"

typedef struct m2_checkpoint m2_checkpoint;

typedef struct m2_ckpt_tensor {
    const char *name;
    m2_dtype dtype;
    int n_dims;
    int64_t shape[M2_MAX_DIMS];
    const void *data;   /* mapped, row-major, if the values lie so in the file and are aligned to
                          their type; else NULL: use m2_checkpoint_read */
    const char *file;   /* path of the file that holds it */
    int64_t count;      /* elements */
    const void *source; /* private: where its bytes are             */
    int64_t stride[M2_MAX_DIMS]; /* private: in elements             */
} m2_ckpt_tensor;

/* Open `path`: a .safetensors file, a .safetensors.index.json, a torch zip file, or a directory that
 * holds model.safetensors.index.json or model.safetensors.
 * Errors  M2_ERR_IO, M2_ERR_FORMAT with the file's name, what it is, and what was expected
 *         (an LFS pointer, an HTML page, an empty or cut file are named as such) */
m2_status m2_checkpoint_open(const char *path, m2_checkpoint **checkpoint_out);
void m2_checkpoint_close(m2_checkpoint *checkpoint);
const char *m2_checkpoint_path(const m2_checkpoint *checkpoint);

int64_t m2_checkpoint_n_tensors(const m2_checkpoint *checkpoint);
/* In the order of the files; for torch files nested dicts give "outer/inner" names. */
const m2_ckpt_tensor *m2_checkpoint_at(const m2_checkpoint *checkpoint, int64_t idx);
/* NULL if there is none of that name. */
const m2_ckpt_tensor *m2_checkpoint_find(const m2_checkpoint *checkpoint, const char *name);
/* 1 if some tensor's name begins with `prefix`. */
int m2_checkpoint_has_prefix(const m2_checkpoint *checkpoint, const char *prefix);

/* Copy the values, row-major, converted to `dtype`, to `to` [count].  Obeys strides. */
void m2_checkpoint_read(const m2_ckpt_tensor *tensor, m2_dtype dtype, void *to);

/* __metadata__ of a safetensors file: NULL without that key. */
const char *m2_checkpoint_metadata(const m2_checkpoint *checkpoint, const char *key);

#endif
