/* preview_parts.h - what the files of the preview transformer share. */
#ifndef M2_MODEL_DIT_PREVIEW_PARTS_H
#define M2_MODEL_DIT_PREVIEW_PARTS_H

#include "model/dit/preview.h"

#define M2_PREVIEW_EPS 1e-6f /* of every RMS norm */

struct m2_preview {
    m2_arch_config arch;
    m2_preview_sizes sizes;
    m2_preview_weights weights;
    int n_time_channels;
};

/* One call of the network: what every part of it needs. */
typedef struct preview_call {
    const m2_preview *net;
    const m2_ops *ops;
    m2_arena *arena; /* step */
    const m2_preview_request *request;
    m2_preview_hooks hooks;
    int layer_idx; /* of the layer at work, -1 outside */
} preview_call;

/* Shows `tensor` to the trace as "preview.NN.what" or, outside a layer, "preview.what". */
void m2_preview_show(const preview_call *call, const char *what, const m2_tensor *tensor);

/* y = x . w^T (+ bias) as a new tensor [n, out] of type `dtype`. */
m2_tensor m2_preview_linear(const preview_call *call, const m2_tensor *x, const m2_tensor *w,
                            const m2_tensor *bias, const m2_groups *groups, m2_dtype dtype);

/* The layers [begin, end) on s [n, 4, hidden], in place. */
void m2_preview_run_layers(preview_call *call, int begin, int end, m2_tensor *s);

#endif
