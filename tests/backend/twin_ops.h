/* twin_ops.h - every call on two tables, judged: the CPU's, and another one that need not give the
 * same bits (a GPU's, through mirror_ops.h).
 *
 * A call fails the running test unless
 *     the other's results are the CPU's within the operator's limits (twin_ops.c says why each),
 *     a second run of the other has the bits of the first,
 *     and, for operators of rows, so has a run over the first half of the rows alone, and one in
 *     which the last row is NaN for all rows before it,
 *     and, for joined operators that promise it, so have the two operators one after the other.
 * The CPU's results stay in the outputs, so that what follows starts from them.
 */
#ifndef M2_TESTS_BACKEND_TWIN_OPS_H
#define M2_TESTS_BACKEND_TWIN_OPS_H

#include "backend/draw.h"
#include "support/mirror_ops.h"
#include "support/op_fields.h"

/* The largest distances seen. */
typedef struct twin_seen {
    int n_calls;
    double f32_error; /* relative RMS against the CPU, f32 results                         */
    double share;     /* of bf16 values that are not the CPU's                             */
    double steps;     /* of bf16, by which a value is off, near zero counted from the mean */
    double truth_error, cpu_truth_error; /* where judged by truth: of ours and of the CPU   */
} twin_seen;

typedef struct m2_twin {
    m2_ops cpu, other;
    m2_mirror *mirror; /* of `other`, asked for faults; may be NULL                          */
    int is_quick;      /* one run each: for memory checkers                                  */
    char where[160];   /* case and seed, for messages */
    twin_seen seen[M2_OP_COUNT];
} m2_twin;

void m2_ops_init_twin(m2_ops *ops, m2_twin *twin);

#endif
