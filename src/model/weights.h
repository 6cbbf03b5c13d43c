/* weights.h - binds the tensors of a checkpoint to the fields of a struct, by a table.
 *
 * A network's weights are a struct of m2_tensor and a table of rows {field, name, type, shape}.
 * One pass over the table checks everything at once - missing, unexpected and misshapen tensors -
 * and reports all of it in one message; then the fields are bound: to mapped memory where the file
 * holds the right type and lies aligned, else to a converted copy in the weights arena.
 *
 *     static const m2_weight_desc table[] = {
 *         { offsetof(text_layer, norm), "input_layernorm.weight", M2_BF16, { HIDDEN }, 0 },
 *     };
 *
 * Shapes hold sizes as symbols: entry s < 0 stands for dims[-s - 1], s > 0 for itself, 0 ends it.
 */
#ifndef M2_MODEL_WEIGHTS_H
#define M2_MODEL_WEIGHTS_H

#include "backend/ops.h"
#include "core/arena.h"
#include "core/status.h"
#include "core/tensor.h"
#include "io/checkpoint.h"

#define M2_WEIGHT_OPTIONAL 1u /* may be missing: the field stays without data */
#define M2_WEIGHT_EXPERTS  2u /* dimension 0 is cut by expert parallelism      */

typedef struct m2_weight_desc {
    size_t offset;    /* of an m2_tensor in the struct          */
    const char *name; /* below the prefix                       */
    m2_dtype dtype;   /* as bound; the file's may differ        */
    int shape[M2_MAX_DIMS];
    unsigned flags;
} m2_weight_desc;

typedef struct m2_weight_binder m2_weight_binder;

/* Collects faults over any number of m2_weights_bind calls on one checkpoint.
 *   dims   sizes that the symbols of all tables stand for, borrowed
 *   ops    where weights go (m2_ops.upload for copies); a measuring table only adds up bytes
 *   arena  weights arena */
m2_status m2_weight_binder_create(const m2_checkpoint *checkpoint, const int64_t *dims, int n_dims,
                                  const m2_ops *ops, m2_arena *arena,
                                  m2_weight_binder **binder_out);
void m2_weight_binder_destroy(m2_weight_binder *binder);

/* Bind the rows of `table` at `prefix` + name into `fields`.  Faults are kept for _finish. */
void m2_weights_bind(m2_weight_binder *binder, const m2_weight_desc *table, int n_rows,
                     const char *prefix, void *fields);

/* Names below `prefix` that no table asks for are allowed (encoders, optimizer state ...);
 * "" allows all. */
void m2_weight_binder_ignore(m2_weight_binder *binder, const char *prefix);

/* One error with every fault, the checkpoint's path and advice; M2_OK if there was none.
 * Errors  M2_ERR_MODEL */
m2_status m2_weight_binder_finish(m2_weight_binder *binder, const char *what);

/* What a table asks for, without a checkpoint (for tests and `inspect`): calls `row` for each. */
typedef void m2_weight_visit(void *user, const char *name, m2_dtype dtype, int n_dims,
                             const int64_t *shape, unsigned flags);
void m2_weights_describe(const m2_weight_desc *table, int n_rows, const char *prefix,
                         const int64_t *dims, m2_weight_visit *row, void *user);

#endif
