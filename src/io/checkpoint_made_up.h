/* checkpoint_made_up.h - a checkpoint without a file: names and shapes, with random values.
 *
 * For measuring a network without its weights: its own opening runs unchanged.
 *
 *     M2_TRY(m2_made_up_create("made-up video decoder", &checkpoint));
 *     ... m2_made_up_add(checkpoint, name, M2_F32, n_dims, shape) for each ...
 *     M2_TRY(m2_made_up_finish(checkpoint, 0.02, seed));
 *
 * Tensors of one type share one block of memory, little more than the largest of them, and begin at
 * different places of it: a model far larger than the host's memory can be made up.
 */
#ifndef M2_IO_CHECKPOINT_MADE_UP_H
#define M2_IO_CHECKPOINT_MADE_UP_H

#include "io/checkpoint.h"

/* Without tensors; `name` stands where a path would, in messages.  Closed as every checkpoint.
 * Errors  M2_ERR_MEMORY */
m2_status m2_made_up_create(const char *name, m2_checkpoint **checkpoint_out);

/* Errors  M2_ERR_MEMORY, M2_ERR_UNSUPPORTED (no floats), M2_ERR_ARG (a size that is none) */
m2_status m2_made_up_add(m2_checkpoint *checkpoint, const char *name, m2_dtype dtype, int n_dims,
                         const int64_t *shape);

/* Memory that finishing takes, while it lasts and less after it. */
size_t m2_made_up_bytes(const m2_checkpoint *checkpoint);

/* Makes the values: normals times `scale`, the same for the same seed.  Only now tensors are found.
 * Errors  M2_ERR_MEMORY, M2_ERR_FORMAT (two of one name) */
m2_status m2_made_up_finish(m2_checkpoint *checkpoint, double scale, uint64_t seed);

#endif
