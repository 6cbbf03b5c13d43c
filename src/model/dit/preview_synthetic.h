/* preview_synthetic.h - a preview transformer with made-up weights, for measuring without a checkpoint.
 *
 * Values are random and of the size that training leaves them at, so that activations stay of order
 * one through all layers, routes spread over all experts, and no product meets zeros (which a machine
 * multiplies faster and cooler).  A few blocks of normals are made on the host and copied over and
 * over on the device, from another place of the block each time: no two tensors are the same.
 *
 * Where memory is short, MoE layers share the storage of their routed experts: the rest of every
 * layer is its own.
 */
#ifndef M2_MODEL_DIT_PREVIEW_SYNTHETIC_H
#define M2_MODEL_DIT_PREVIEW_SYNTHETIC_H

#include "model/dit/preview.h"

typedef struct m2_preview_synthetic {
    int n_resident; /* MoE layers whose experts are their own; 0 or too many: all of them */
    uint64_t seed;
} m2_preview_synthetic;

/* As m2_preview_open; `scratch` is given back as it was.  On measuring arenas, a plan.
 * Errors  M2_ERR_MODEL (config), M2_ERR_MEMORY (of the host) */
m2_status m2_preview_open_synthetic(const m2_arch_config *arch, int n_time_channels,
                                    const m2_ops *ops, m2_arena *arena, m2_arena *scratch,
                                    const m2_preview_synthetic *params, m2_preview **preview_out);

typedef struct m2_preview_synthetic_size {
    size_t weights, scratch; /* bytes of the arenas */
} m2_preview_synthetic_size;

/* What opening takes.  Errors  as of it */
m2_status m2_preview_synthetic_measure(const m2_arch_config *arch, int n_time_channels,
                                       int n_resident, m2_preview_synthetic_size *size_out);

/* MoE layers of a config. */
int m2_preview_n_moe_layers(const m2_arch_config *arch);

#endif
