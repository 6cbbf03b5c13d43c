/* gated_delta_rule.h - what every version of the gated delta rule begins with. */
#ifndef M2_BACKEND_CPU_REF_GATED_DELTA_RULE_H
#define M2_BACKEND_CPU_REF_GATED_DELTA_RULE_H

#include "backend/ops.h"

/* What a token brings, in the operator's `scratch`: normalised q (scaled) and k of its key heads,
 * and per value head the step size beta and the decay, as exp(g) or, for chunks, as g itself.  Heads
 * are outermost: a worker follows one head through all tokens. */
typedef struct m2_delta_run {
    m2_gated_delta_rule_args args;
    int64_t n;
    float *q, *k; /* [Hk, n, dk]                                       */
    float *decay; /* [Hv, n]                                           */
    float *beta;  /* [Hv, n]                                           */
    float *work;  /* [Hv, work_per_head]: dk * (dv rounded up to 16) or more */
    int64_t work_per_head;
} m2_delta_run;

void m2_delta_prepare(const m2_ops *ops, const m2_gated_delta_rule_args *args,
                      m2_delta_run *run_out);

#endif
