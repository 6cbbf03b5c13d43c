/* ops.h - the one operator table that every network is written against.
 *
 * Each slot takes the table itself (for its pool or stream) and a struct of named arguments.  All
 * tensors are contiguous, row-major, borrowed for the call, and checked by assert: shapes were
 * checked against the config when weights were loaded and when the request came in.  Outputs must
 * not overlap inputs unless a comment allows it.  No operator fails, allocates or waits.
 *
 * The scalar definition of every operator is backend/cpu/ref/<op>.c.  It fixes the order of sums;
 * faster versions on the CPU give the same bits, GPU versions meet the error rule (docs/NUMERICS.md).
 *
 * Joined operators are two in sequence, for backends that can do both in one pass.  The result
 * between them is scratch: rounded as it would be, but of no meaning afterwards.
 *
 * Types   "act" below is bf16 or f32: activations of one call share a type.  All arithmetic is f32,
 *         rounded once to the output's type unless a comment says more.
 * Memory  a tensor may begin at any address that its elements may have.  Results do not depend on it
 *         on the CPU; on a GPU another kernel may take it, within the error rule.
 * Rounding to bf16 happens exactly where the reference rounds (docs/NUMERICS.md).
 */
#ifndef M2_BACKEND_OPS_H
#define M2_BACKEND_OPS_H

#include "core/tensor.h"
#include "core/threads.h"

#define M2_GROUPS_MAX 4
#define M2_STREAMS    4 /* residual streams of mHC */

/* Rows sorted by modality: group g is rows [begin[g], begin[g + 1]).  A group may be empty. */
typedef struct m2_groups {
    int n_groups;
    int64_t begin[M2_GROUPS_MAX + 1];
} m2_groups;

typedef enum m2_activation {
    M2_ACT_NONE = 0,
    M2_ACT_SILU,
    M2_ACT_RELU,
    M2_ACT_ELU, /* alpha 1 */
    M2_ACT_TANH
} m2_activation;

/* ---- for every network ------------------------------------------------------------------- */

/* y[r] = x[r] . w[g]^T (+ bias), one weight slice per group of rows.
 * bf16 products run over K in blocks of 32 (E and O chains); f32 products likewise, with the
 * block sums gathered over 512 of K before they join the total. */
typedef struct m2_linear_args {
    const m2_tensor *x;      /* [n, k] bf16 or f32                                        */
    const m2_tensor *w;      /* [n_groups * out, k], type of x                            */
    const m2_tensor *bias;   /* [n_groups * out] f32 or bf16, added before rounding, or NULL */
    const m2_groups *groups; /* NULL: one group                                           */
    m2_tensor *y;            /* [n, out] bf16 or f32                                      */
} m2_linear_args;

/* y = (x * rsqrt(mean(x^2) + eps)) * (w[g] + weight_offset), each row over its last `dim` values. */
typedef struct m2_rms_norm_args {
    const m2_tensor *x; /* [n, ..., dim] act; leading dimensions are rows, see groups          */
    const m2_tensor *w; /* [n_groups * dim] f32 or bf16, or NULL for none                      */
    const m2_groups
        *groups; /* of the outermost dimension n; NULL: one group                       */
    float eps;
    float weight_offset; /* 1 where weights are stored as offsets from 1, else 0                 */
    m2_tensor *y;        /* shape of x, bf16 or f32                                             */
} m2_rms_norm_args;

/* y = a + b (+ c): f32 sum left to right, one rounding.  y may be a. */
typedef struct m2_add_args {
    const m2_tensor *a, *b, *c; /* same shape and type; c may be NULL */
    m2_tensor *y;
} m2_add_args;

/* y[i] = x[idx[i]]; an index below 0 gives zeros. */
typedef struct m2_gather_rows_args {
    const m2_tensor *x;   /* [rows, ...] any type        */
    const m2_tensor *idx; /* [n] i32                     */
    m2_tensor *y;         /* [n, ...] type of x          */
} m2_gather_rows_args;

/* y = x in y's type (f32 <-> bf16, or a plain copy). */
typedef struct m2_convert_args {
    const m2_tensor *x;
    m2_tensor *y; /* same count */
} m2_convert_args;

/* y[j][i] = x[i][j] */
typedef struct m2_transpose_args {
    const m2_tensor *x; /* [a, b] f32 */
    m2_tensor *y;       /* [b, a] f32 */
} m2_transpose_args;

/* y = activation(x), rounded to y's type.  y may be x. */
typedef struct m2_activate_args {
    const m2_tensor *x;
    m2_activation activation;
    m2_tensor *y;
} m2_activate_args;

/* *flag = 1 if any value is not finite; never cleared here. */
typedef struct m2_find_nonfinite_args {
    const m2_tensor *x; /* f32 or bf16 */
    m2_tensor *flag;    /* [1] i32     */
} m2_find_nonfinite_args;

/* Softmax attention inside segments, with learned sinks or a causal mask; an exact streaming
 * softmax over key blocks of 64: S in f32, P = exp(S - running max) rounded to bf16 for the product
 * with V when q is bf16, row sums of the unrounded P, one division at the end.
 * Query head h reads key/value head h / (H / K). */
typedef struct m2_attention_args {
    const m2_tensor *q;      /* [n, H, d] act                                            */
    const m2_tensor *k, *v;  /* [n, K, d] act                                            */
    const m2_tensor *sinks;  /* [n_sinks, H] f32 or NULL: after the rounding of the plain result,
                                  a *= exp(lse - ln(exp(lse) + sum_s exp(sink_s))), rounded again */
    const int64_t *segments; /* [n_segments + 1] host, from 0 to n: keys of a query's own segment */
    int n_segments;
    float scale;   /* of the scores                                            */
    int is_causal; /* key j only for queries i >= j                            */
    m2_tensor *y;  /* [n, H, d] act                                            */
} m2_attention_args;

/* ---- preview transformer ------------------------------------------------------------------ */

/* Sine and cosine of coords x bands. */
typedef struct m2_rope_table_args {
    const m2_tensor *coords; /* [n, 9] f32: t y x, sizes, references */
    const m2_tensor *bands;  /* [n_bands] f32                        */
    m2_tensor *table;        /* [n, 2 * 3 * n_bands] f32: all sines, then all cosines */
} m2_rope_table_args;

/* Overwrite the first n_channels columns of every row with the embedding of its time. */
typedef struct m2_time_channels_args {
    const m2_tensor *tau; /* [n] f32: timestep / 1000, or 0 */
    int n_channels;       /* even; 64 in the release        */
    m2_tensor *x;         /* [n, width] f32, in/out         */
} m2_time_channels_args;

/* The three coefficient groups of mHC: RMS norm of the flattened streams, product with phi,
 * sigmoid, 2 sigmoid, Sinkhorn (20 rounds, columns first). */
typedef struct m2_mhc_coefficients_args {
    const m2_tensor *s;      /* [n, 4, D] bf16                             */
    const m2_tensor *norm;   /* [n_groups * 4 * D] f32, offsets from 1     */
    const m2_groups *groups; /* NULL: one group                            */
    const m2_tensor *phi;    /* [4 * D, 24] f32                            */
    const m2_tensor *alpha_pre, *alpha_post, *alpha_res; /* [1] f32          */
    const m2_tensor *bias_pre, *bias_post;               /* [4] f32          */
    const m2_tensor *bias_res;                           /* [4, 4] f32       */
    float eps;         /* of the norm                                */
    m2_tensor *h_pre;  /* [n, 4] bf16                                */
    m2_tensor *h_post; /* [n, 4] bf16                                */
    m2_tensor *h_res;  /* [n, 4, 4] bf16, [target][source]           */
    /* Before rounding, for tests; each may be NULL: [n, 24], [n, 4], [n, 4], [n, 4, 4] f32. */
    m2_tensor *phi_out, *h_pre_f32, *h_post_f32, *h_res_f32;
} m2_mhc_coefficients_args;

/* mhc_coefficients, then mhc_read of the same streams: one pass over them where the backend can. */
typedef struct m2_mhc_open_args {
    m2_mhc_coefficients_args coefficients;
    m2_tensor *x; /* [n, D] bf16 */
} m2_mhc_open_args;

/* x = sum_i h_pre[i] * s[i], f32 ascending i, one rounding. */
typedef struct m2_mhc_read_args {
    const m2_tensor *s;     /* [n, 4, D] bf16 */
    const m2_tensor *h_pre; /* [n, 4] bf16    */
    m2_tensor *x;           /* [n, D] bf16    */
} m2_mhc_read_args;

/* s_out[i] = sum_j h_res[i][j] * s[j] + h_post[i] * o, f32 in that order, one rounding.
 * s_out may be s. */
typedef struct m2_mhc_write_args {
    const m2_tensor *s;      /* [n, 4, D] bf16 */
    const m2_tensor *h_res;  /* [n, 4, 4] bf16 */
    const m2_tensor *h_post; /* [n, 4] bf16    */
    const m2_tensor *o;      /* [n, D] bf16    */
    m2_tensor *s_out;        /* [n, 4, D] bf16 */
} m2_mhc_write_args;

/* mhc_write, then mhc_open of the streams that it wrote. */
typedef struct m2_mhc_write_open_args {
    m2_mhc_write_args write;
    m2_mhc_open_args open; /* coefficients.s is write.s_out; its outputs are not what write reads */
} m2_mhc_write_open_args;

/* Split qkv, norm q and k per head (f32), rotate (f32), round to bf16, and write row r of the
 * modality order to row seq[r] of the sequence order. */
typedef struct m2_qk_norm_rope_args {
    const m2_tensor *qkv;    /* [n, (H + 2K) * d] bf16: q heads, k heads, v heads         */
    const m2_tensor *q_norm; /* [n_groups * d] f32, offsets from 1                        */
    const m2_tensor *k_norm;
    const m2_groups *groups; /* NULL: one group                                          */
    const m2_tensor *rope;   /* [n, 2 * n_rot] f32, row order of qkv: sines, cosines; pairs
                                 (i, i + n_rot) of the first 2 * n_rot dims turn           */
    const m2_tensor *seq;    /* [n] i32                                                   */
    float eps;
    m2_tensor *q;     /* [n, H, d] bf16                                            */
    m2_tensor *k, *v; /* [n, K, d] bf16                                            */
} m2_qk_norm_rope_args;

/* y[r] = a[seq[r]] * sigmoid(g[r]) per head, f32, one rounding: back to modality order. */
typedef struct m2_attention_gate_args {
    const m2_tensor *a;   /* [n, H, d] bf16, sequence order */
    const m2_tensor *g;   /* [n, H] bf16, modality order    */
    const m2_tensor *seq; /* [n] i32                        */
    m2_tensor *y;         /* [n, H * d] bf16                */
} m2_attention_gate_args;

/* attention, then attention_gate of its result. */
typedef struct m2_attention_gated_args {
    m2_attention_args attention; /* y: scratch                                          */
    m2_attention_gate_args gate; /* a: attention.y                                      */
    const m2_tensor *row;        /* [n] i32, the other way round: row[gate.seq[r]] = r   */
} m2_attention_gated_args;

/* y[i] = (g * sigmoid(1.702 g)) * (l + 1), g = min(x[2i], 7), l = clamp(x[2i + 1], -7, 7). */
typedef struct m2_swiglu7_args {
    const m2_tensor *x; /* [n, 2 * width] act */
    m2_tensor *y;       /* [n, width] act     */
} m2_swiglu7_args;

/* linear, then swiglu7 of its result. */
typedef struct m2_linear_swiglu7_args {
    m2_linear_args linear; /* y: scratch, [n, 2 * width] */
    m2_tensor *y;          /* [n, width]                 */
} m2_linear_swiglu7_args;

/* linear, then qk_norm_rope of its result. */
typedef struct m2_linear_qk_norm_rope_args {
    m2_linear_args linear;      /* y: scratch    */
    m2_qk_norm_rope_args heads; /* qkv: linear.y */
} m2_linear_qk_norm_rope_args;

/* linear, then the sum of its result with others. */
typedef struct m2_linear_add_args {
    m2_linear_args linear; /* y: scratch  */
    m2_add_args add;       /* c: linear.y */
} m2_linear_add_args;

/* logits[h][t][e] = sum_d x[t][h][d] * gate[h * E + e][d], f32 products. */
typedef struct m2_moe_logits_args {
    const m2_tensor *x;    /* [n, Hm, dh] bf16     */
    const m2_tensor *gate; /* [Hm * E, dh] f32     */
    m2_tensor *logits;     /* [Hm, n, E] f32       */
} m2_moe_logits_args;

/* The top_k experts by sigmoid(logit) + bias, (key descending, id ascending); weights
 * p = sigmoid(logit) / max(sum |sigmoid|, 1e-12) over the chosen, in that order, times route_scale. */
typedef struct m2_moe_select_args {
    const m2_tensor *logits; /* [Hm, n, E] f32                                        */
    const m2_tensor *bias;   /* [Hm * E] f32 or NULL                                  */
    const m2_tensor *forced; /* [Hm, n, top_k] i32: these ids instead of the choice; or NULL */
    float route_scale;
    m2_tensor *topk_idx;  /* [Hm, n, top_k] i32                                    */
    m2_tensor *topk_prob; /* [Hm, n, top_k] f32                                    */
} m2_moe_select_args;

/* Sort the routes by (head, expert), tokens ascending inside one (stable). */
typedef struct m2_moe_dispatch_args {
    const m2_tensor *topk_idx;  /* [Hm, n, top_k] i32                               */
    const m2_tensor *topk_prob; /* [Hm, n, top_k] f32                               */
    int n_experts;              /* per head                                         */
    m2_tensor *gather_ids;      /* [Hm * n * top_k] i32: token of each sorted route */
    m2_tensor *probs_sorted;    /* [Hm * n * top_k] f32                             */
    m2_tensor *expert_offsets;  /* [Hm * E + 1] i32                                 */
    m2_tensor *route_pos;       /* [Hm, n, top_k] i32: sorted position of each token's routes,
                                   experts ascending                                */
} m2_moe_dispatch_args;

/* Routed experts: hid = bf16(swiglu7(x . w_gate, x . w_up)) with gate and up unrounded,
 * r = bf16((hid . w_down) * p), y = r added in bf16 in ascending expert id, from 0. */
typedef struct m2_moe_ffn_args {
    const m2_tensor *x; /* [n, Hm, dh] bf16                      */
    const m2_tensor *gather_ids, *probs_sorted, *expert_offsets, *route_pos; /* of moe_dispatch */
    const m2_tensor *w_gate, *w_up; /* [Hm * E, dh, width] bf16: y = x . w   */
    const m2_tensor *w_down;        /* [Hm * E, width, dh] bf16              */
    m2_tensor *routes;              /* [Hm * n * top_k, dh] bf16, scratch    */
    m2_tensor *y;                   /* [n, Hm, dh] bf16                      */
} m2_moe_ffn_args;

/* ---- sampler -------------------------------------------------------------------------------- */

/* Recorded steps are replayed, so whatever changes from step to step stands in a table on the device,
 * and `step` [1] i32, there too, says which row: the steps done. */

/* v = u + s * (c - u), three f32 operations. */
typedef struct m2_guidance_mix_args {
    const m2_tensor *cond, *uncond; /* [channels, frames, inner] f32                    */
    const m2_tensor *scale;         /* [n_steps, frames] f32, or [n_steps, 1] for all   */
    const m2_tensor *step;          /* [1] i32: the row of scale; NULL: row 0           */
    m2_tensor *v;                   /* shape of cond; may be uncond                     */
} m2_guidance_mix_args;

/* The skimmed-linear change of u before the mix, in place on uncond. */
typedef struct m2_guidance_skim_args {
    const m2_tensor *cond, *latent; /* [channels, frames, inner] f32 */
    const m2_tensor *scale, *step;  /* as of guidance_mix            */
    float skim_scale;
    m2_tensor *uncond; /* in/out                        */
} m2_guidance_skim_args;

/* v *= r * std(cond) / max(std(v), 1e-6) + (1 - r), population std over everything but `channels`
 * (outermost) or, for audio, over the outermost dimension; in place on v. */
typedef struct m2_guidance_rescale_args {
    const m2_tensor *cond; /* [channels, rest] f32, or [rest, channels] if channels_last */
    float rescale;
    int channels_last;
    m2_tensor *v;
} m2_guidance_rescale_args;

/* One step of UniPC for one latent, k = *step; every product and every sum is one f32 operation,
 * left to right, no FMA.  a, b ... are of row k of the table.
 *
 *   clean[k % 3] = latent + minus_sigma * velocity                 (`now`; `last`, `older` before it)
 *   corrector 1  latent = a * start + b * last + c * (now - last)
 *   corrector 2  latent = a * start + b * last + c * (rho_older * ((older - last) * inverse_r)
 *                                                     + rho_now * (now - last))
 *   start = latent
 *   predictor 1  latent = p * start + q * now
 *   predictor 2  latent = p * start + q * now + s * ((last - now) * predictor_inverse_r)
 *   predictor 0  the last step: latent = now, and nothing else
 *
 * Step 0 clears the two older clean latents, so that what is saved of it has no stray bits. */
enum {
    M2_UNIPC_MINUS_SIGMA = 0,
    M2_UNIPC_CORRECTOR, /* its order: 0, 1, 2    */
    M2_UNIPC_CORRECTOR_START,
    M2_UNIPC_CORRECTOR_LAST,
    M2_UNIPC_CORRECTOR_SLOPE,
    M2_UNIPC_INVERSE_R,
    M2_UNIPC_RHO_OLDER,
    M2_UNIPC_RHO_NOW,
    M2_UNIPC_PREDICTOR, /* its order; 0: none    */
    M2_UNIPC_PREDICTOR_START,
    M2_UNIPC_PREDICTOR_NOW,
    M2_UNIPC_PREDICTOR_SLOPE,
    M2_UNIPC_PREDICTOR_INVERSE_R,
    M2_UNIPC_COEFFS
};
typedef struct m2_unipc_step_args {
    const m2_tensor *velocity; /* [n] f32                                       */
    const m2_tensor *table;    /* [n_steps, M2_UNIPC_COEFFS] f32                */
    const m2_tensor *step;     /* [1] i32, below n_steps                        */
    m2_tensor *clean[3];       /* [n] f32: clean latents of the last steps      */
    m2_tensor *start;          /* [n] f32: what the last predictor started from */
    m2_tensor *latent;         /* [n] f32, in/out                               */
} m2_unipc_step_args;

/* *counter += 1: the end of a step. */
typedef struct m2_advance_args {
    m2_tensor *counter; /* [1] i32 */
} m2_advance_args;

/* ---- text encoder --------------------------------------------------------------------------- */

/* cos and sin of position * theta^(-2i / n_dims), computed in f32, rounded to the table's type. */
typedef struct m2_text_rope_table_args {
    double theta;
    m2_tensor *cos, *sin; /* [n, n_dims / 2] act */
} m2_text_rope_table_args;

/* Per head: q and gate from qg, RMS norm of q and k (weights as offsets from 1, rounded), half-split
 * rotation of the first 2 * n_rot dims, products and sum each rounded. */
typedef struct m2_text_qk_norm_rope_args {
    const m2_tensor *qg;              /* [n, H, 2 * d] act: query, then gate, per head */
    const m2_tensor *k_in;            /* [n, K, d] act                                 */
    const m2_tensor *q_norm, *k_norm; /* [d] act                               */
    const m2_tensor *cos, *sin;       /* [n, n_rot] act                        */
    float eps;
    m2_tensor *q; /* [n, H, d] act */
    m2_tensor *k; /* [n, K, d] act */
} m2_text_qk_norm_rope_args;

/* y = a * round(sigmoid(gate)), rounded; gate is the second half of each head of qg. */
typedef struct m2_text_gate_args {
    const m2_tensor *a;  /* [n, H, d] act     */
    const m2_tensor *qg; /* [n, H, 2 * d] act */
    m2_tensor *y;        /* [n, H * d] act    */
} m2_text_gate_args;

/* y = round(round(silu(gate)) * up) */
typedef struct m2_silu_mul_args {
    const m2_tensor *gate, *up; /* [n, width] act */
    m2_tensor *y;               /* may be gate    */
} m2_silu_mul_args;

/* Causal depthwise convolution over time, rounded, then SiLU, rounded. */
typedef struct m2_causal_conv_silu_args {
    const m2_tensor *x; /* [n, C] act                                    */
    const m2_tensor *w; /* [C, 1, kernel] act: last tap is the present   */
    m2_tensor *y;       /* [n, C] act                                    */
} m2_causal_conv_silu_args;

/* Gated delta rule from a zero state; everything inside in f32. */
typedef struct m2_gated_delta_rule_args {
    const m2_tensor *qkv;   /* [n, 2 * Hk * dk + Hv * dv] act: q heads, k heads, v heads */
    const m2_tensor *a, *b; /* [n, Hv] act                                               */
    const m2_tensor *a_log, *dt_bias; /* [Hv] act                                          */
    int n_key_heads, key_dim, n_value_heads, value_dim;
    int use_chunks;     /* the chunked form (64 tokens) instead of the recurrent one */
    m2_tensor *scratch; /* [m2_gated_delta_scratch(...)] f32                         */
    m2_tensor *o;       /* [n, Hv, dv] act                                           */
} m2_gated_delta_rule_args;
/* Elements of `scratch`. */
int64_t m2_gated_delta_scratch(int64_t n, int n_key_heads, int key_dim, int n_value_heads,
                               int value_dim, int use_chunks);

/* y = round(round(w * round(o * rsqrt(mean o^2 + eps))) * silu(z)), per head. */
typedef struct m2_gated_rms_norm_args {
    const m2_tensor *o; /* [n, Hv, dv] act   */
    const m2_tensor *w; /* [dv] act          */
    const m2_tensor *z; /* [n, Hv * dv] act  */
    float eps;
    m2_tensor *y; /* [n, Hv * dv] act  */
} m2_gated_rms_norm_args;

/* y = (sum of x[idx[i]], f32 in the order of idx) * (1 / n), rounded; zeros if n is 0. */
typedef struct m2_mean_rows_args {
    const m2_tensor *x;   /* [rows, width] act */
    const m2_tensor *idx; /* [n] i32           */
    m2_tensor *y;         /* [width] act       */
} m2_mean_rows_args;

/* ---- decoders (channels last) ----------------------------------------------------------------- */

/* Convolution, stride 1, over [T, H, W, C].  In time the first and last frame repeat, in H and W
 * zeros are outside.  K runs over the taps (t, y, x), channels inside one tap padded to 32.
 * Kernel sizes are odd unless pads are given by `left`. */
typedef struct m2_conv_args {
    const m2_tensor *x;    /* [T, H, W, c_in] act                                     */
    const m2_tensor *w;    /* [kt * kh * kw, c_out, c_in], type of x                  */
    const m2_tensor *bias; /* [c_out] type of x or f32, added before rounding, or NULL */
    int kernel[3];         /* kt, kh, kw                                              */
    int dilation;          /* of W alone (1-D networks); 1 elsewhere                  */
    int pad_left;          /* zeros left of W; -1: (kw - 1) * dilation / 2            */
    m2_tensor *y;          /* [T, H, W, c_out] type of x                              */
} m2_conv_args;

/* Depthwise convolution with the same padding rule. */
typedef struct m2_conv_depthwise_args {
    const m2_tensor *x;    /* [T, H, W, C] act           */
    const m2_tensor *w;    /* [kt * kh * kw, C] act      */
    const m2_tensor *bias; /* [C] act or NULL            */
    int kernel[3];
    m2_tensor *y; /* [T, H, W, C] act           */
} m2_conv_depthwise_args;

/* y[t * stride + k - pad] += x[t] . w[k], pad = (stride + 1) / 2, kernel 2 * stride. */
typedef struct m2_conv_transpose_args {
    const m2_tensor *x;    /* [L, c_in] f32                  */
    const m2_tensor *w;    /* [2 * stride, c_out, c_in] f32  */
    const m2_tensor *bias; /* [c_out] f32 or NULL            */
    int stride;
    m2_tensor *y; /* [L * stride - stride % 2, c_out] f32 */
} m2_conv_transpose_args;

/* y = round(activation(round(x * rsqrt(mean_C x^2 + eps)))) */
typedef struct m2_rms_act_args {
    const m2_tensor *x; /* [..., C] act */
    float eps;
    m2_activation activation;
    m2_tensor *y; /* may be x */
} m2_rms_act_args;

/* Every sample fh times in H and fw times in W. */
typedef struct m2_upsample_nearest_args {
    const m2_tensor *x; /* [T, H, W, C] act           */
    int fh, fw;
    m2_tensor *y; /* [T, H * fh, W * fw, C] act */
} m2_upsample_nearest_args;

/* Frame 2t + s takes channels s * C ... of frame t; the first n_drop frames are left out. */
typedef struct m2_split_time_args {
    const m2_tensor *x; /* [T, H, W, 2 * C] act        */
    int n_drop;
    m2_tensor *y; /* [2 * T - n_drop, H, W, C] act */
} m2_split_time_args;

/* y[t][2y + q][2x + r][c] = x[t][y][x][4c + (column_outer ? 2r + q : 2q + r)] */
typedef struct m2_pixel_shuffle_args {
    const m2_tensor *x; /* [T, H, W, 4 * C] act   */
    int column_outer;
    m2_tensor *y; /* [T, 2H, 2W, C] act     */
} m2_pixel_shuffle_args;

/* y[t][h][w][c] = round(round_act(z[c][t][h][w]) / (1 / std[c]) + mean[c]), frames idx[t]. */
typedef struct m2_denormalise_args {
    const m2_tensor *z;          /* [C, T_in, H, W] f32                               */
    const m2_tensor *mean, *std; /* [C] f32                                           */
    int64_t t_begin;             /* first latent frame; past the end the last repeats */
    m2_tensor *y;                /* [T, H, W, C] act                                  */
} m2_denormalise_args;

/* u8 = trunc(clamp(x * 0.5 + 0.5, 0, 1) * 255) */
typedef struct m2_frames_u8_args {
    const m2_tensor *x; /* act      */
    m2_tensor *y;       /* u8, same count */
} m2_frames_u8_args;

/* y = x + sin(a x)^2 / (b + 1e-9), a = exp(alpha[c]), b = exp(beta[c]).  y may be x. */
typedef struct m2_snake_args {
    const m2_tensor *x;            /* [L, C] f32          */
    const m2_tensor *alpha, *beta; /* [C] f32, logarithms */
    m2_tensor *y;
} m2_snake_args;

/* clang-format does not settle on this macro. */
/* clang-format off */
#define M2_OPS(X)                                                                                  \
    X(linear) X(rms_norm) X(add) X(gather_rows) X(convert) X(transpose) X(activate)                \
    X(find_nonfinite) X(attention) X(mean_rows)                                                    \
    X(rope_table) X(time_channels) X(mhc_coefficients) X(mhc_read) X(mhc_open) X(mhc_write)        \
    X(mhc_write_open) X(qk_norm_rope) X(attention_gate) X(attention_gated) X(swiglu7)              \
    X(linear_swiglu7) X(linear_qk_norm_rope) X(linear_add)                                         \
    X(moe_logits) X(moe_select) X(moe_dispatch) X(moe_ffn)                                         \
    X(guidance_mix) X(guidance_skim) X(guidance_rescale) X(unipc_step) X(advance)                  \
    X(text_rope_table) X(text_qk_norm_rope) X(text_gate) X(silu_mul) X(causal_conv_silu)           \
    X(gated_delta_rule) X(gated_rms_norm)                                                          \
    X(conv) X(conv_depthwise) X(conv_transpose) X(rms_act) X(upsample_nearest) X(split_time)       \
    X(pixel_shuffle) X(denormalise) X(frames_u8) X(snake)
/* clang-format on */

typedef struct m2_ops m2_ops;
struct m2_device_api; /* device.h */
struct m2_ops {
    const char *backend; /* "cpu", "cuda", "musa"               */
    const char *isa;     /* "ref", "avx2", "sm_90" ...          */
    int is_measuring;    /* slots do nothing: for planning only */
    m2_pool *pool;       /* CPU: its workers, may be NULL       */
    void *device;        /* GPU: its m2_gpu                     */
    const struct m2_device_api *device_api;
    /* Host <-> device; plain copies on the CPU. */
    void (*upload)(const m2_ops *ops, m2_tensor *to, const void *from_host);
    void (*download)(const m2_ops *ops, void *to_host, const m2_tensor *from);
#define M2_OPS_SLOT_(name) void (*name)(const m2_ops *ops, const m2_##name##_args *args);
    M2_OPS(M2_OPS_SLOT_)
#undef M2_OPS_SLOT_
};

/* A table whose slots do nothing, for planning on measuring arenas; its device is the host unless
 * `device_api` is set to that of the table to plan for. */
void m2_ops_init_measure(m2_ops *ops);

#endif
