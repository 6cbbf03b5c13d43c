/* dnn.h - attention by the vendor's library of networks, opened at run time if it is there.
 *
 * It stands in where no kernel of our own is made for the card, and beside it as the judge of speed.
 * One plan for each length and shape of heads, found once and kept: the first of the library's own
 * order that promises to be deterministic.  Which one that is, is the library's affair, so bits hold
 * for one version of it, one type of card and one length alone.
 */
#ifndef M2_BACKEND_GPU_DNN_H
#define M2_BACKEND_GPU_DNN_H

#include "backend/gpu/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct m2_gpu_dnn m2_gpu_dnn;

/* NULL with the reason in `text` if there is none, else its name and version; the version alone and
 * NULL if it is not wanted, since opening takes a third of a second. */
m2_gpu_dnn *m2_gpu_dnn_open(m2_gpu *gpu, int is_wanted, char *text, size_t bytes);
void m2_gpu_dnn_close(m2_gpu_dnn *dnn);

#define M2_GPU_DNN_BYTES ((size_t)64 << 20)

/* Heads of one segment: y [n, n_heads, dim] = softmax(scale q k^T) v, everything bf16. */
typedef struct m2_gpu_heads {
    int64_t n, n_heads, n_kv, dim; /* query head h reads head h / (n_heads / n_kv) of k and v */
    int is_causal;
    float scale;
    const void *q, *k, *v; /* [n, n_heads, dim], [n, n_kv, dim] */
    void *y;
    float *lse;   /* [n_heads, n] ln of the sum of e^score         */
    void *memory; /* [M2_GPU_DNN_BYTES] for the library's own use  */
} m2_gpu_heads;

/* 1 when it is on the stream, 0 when the library has nothing for this shape. */
int m2_gpu_dnn_attend(m2_gpu *gpu, const m2_gpu_heads *heads);

/* The attention operator by the library; 0 when it is absent, has nothing for these shapes or would
 * not be worth its plans (attention.c): then all of y is still to be written. */
int m2_gpu_attention_library(m2_gpu *gpu, const m2_attention_args *args);

/* What the sinks leave of a segment's result: y [n, n_heads, dim] bf16 times
 * e^lse / (e^lse + sum of e^sink), rounded; sinks [n_sinks, n_heads] (kernels/simt_attention_sinks.cu). */
void m2_gpu_attention_sinks(m2_gpu *gpu, const m2_gpu_heads *heads, const float *sinks,
                            int n_sinks);

#ifdef __cplusplus
}
#endif

#endif
