/* op_fields.h - what every operator reads and writes, as a table: tests that run any operator of
 * M2_OPS walk its tensors by offset in its args.
 *
 * The table is made from M2_OPS: an operator without a list of fields does not compile.
 */
#ifndef M2_TESTS_SUPPORT_OP_FIELDS_H
#define M2_TESTS_SUPPORT_OP_FIELDS_H

#include "backend/ops.h"

typedef enum m2_field_use {
    M2_FIELD_IN,
    M2_FIELD_OUT, /* wholly written, unless it is also an input by its memory */
    M2_FIELD_INOUT,
    M2_FIELD_SCRATCH /* of no meaning before and after */
} m2_field_use;

typedef struct m2_op_field {
    const char *name;
    size_t offset; /* of the tensor's pointer in the args */
    m2_field_use use;
    int has_rows; /* its outermost dimension counts the rows of the operator */
} m2_op_field;

typedef struct m2_op_info {
    const char *name;
    size_t args_bytes;
    const m2_op_field *fields;
    int n_fields;
    void (*call)(const m2_ops *ops, const void *args); /* the slot of a table */
} m2_op_info;

typedef enum m2_op_idx {
#define M2_OP_IDX_(name) M2_OP_##name,
    M2_OPS(M2_OP_IDX_)
#undef M2_OP_IDX_
        M2_OP_COUNT
} m2_op_idx;

#define M2_OP_FIELDS_MAX     24
#define M2_OP_ARGS_BYTES_MAX 256

extern const m2_op_info m2_op_infos[M2_OP_COUNT];

/* The tensor of a field, or NULL where the call has none. */
m2_tensor *m2_field_get(const m2_op_field *field, const void *args);
void m2_field_set(const m2_op_field *field, void *args, const m2_tensor *tensor);
/* Offset of the args' `groups`, or -1: an operator of rows whose weights come in groups. */
ptrdiff_t m2_op_groups_offset(m2_op_idx op);

#endif
