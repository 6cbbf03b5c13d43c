/* synthetic_fit.h - how many MoE layers of a made-up transformer have experts of their own.
 *
 * One rule for measuring and for planning: `bench step` follows it on the machine it runs on, `plan`
 * says what it would do with a machine that is not here.
 */
#ifndef M2_PIPELINE_SYNTHETIC_FIT_H
#define M2_PIPELINE_SYNTHETIC_FIT_H

#include "pipeline/step_need.h"

typedef struct m2_synthetic_fit {
    int n_moe_layers, n_resident; /* and those of them whose experts are their own */
    size_t weights_bytes;
    size_t step_bytes; /* of the step arena */
} m2_synthetic_fit;

/* Bytes of the step arena: of a step, or of what is measured around it. */
size_t m2_bench_step_bytes(const m2_ops *ops, const m2_step_need *need);

/* As many layers as `room` holds beside the arenas and a reserve, at least one; or n_asked of them, if
 * that is not 0.  `room` is what weights, request and step may take together; ops->device_api tells a
 * host from a device.  Errors  as of m2_preview_synthetic_measure */
m2_status m2_synthetic_fit_make(const m2_model_config *config, const m2_ops *ops,
                                const m2_step_need *need, int n_asked, size_t room,
                                m2_synthetic_fit *fit_out);

#endif
