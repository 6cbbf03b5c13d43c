/* mhc_coefficients.c - how a half layer reads its four streams and writes them back.
 *
 *   u = RMS norm of the flattened streams;  c = u . phi;  ms = 1 / sqrt(4 D)
 *   h_pre = sigmoid((alpha_pre ms) c[0:4] + bias_pre);  h_post = 2 sigmoid(... c[4:8] ...)
 *   h_res = Sinkhorn(... c[8:24] ...), [target][source]; each rounded to bf16
 *
 * Order  c[j]: E and O are FMA chains over the even and odd rows of a block of 32 rows of phi; E + O
 *        joins a sum over 512 rows, and that the total.  One chain over 12,288 rows would lose ten
 *        times what the reference loses.
 */
#include "backend/cpu/ref/groups.h"
#include "backend/cpu/ref/reduce.h"
#include "backend/cpu/ref/ref.h"
#include "core/fmath.h"

#define N_COEFFICIENTS  (2 * M2_STREAMS + M2_STREAMS * M2_STREAMS)
#define SINKHORN_ROUNDS 20
#define SINKHORN_EPS    1e-12f
#define PHI_BLOCK       32

/* c[j] = sum of ((s * scale) * (norm + 1)) * phi[i][j]; `s` begins at element `first`. */
static void project(const m2_mhc_coefficients_args *args, int64_t first, int64_t n, int64_t group,
                    float *c)
{
    const float *norm = (const float *)args->norm->data + group * n;
    const float *phi = args->phi->data;
    const float scale = m2_ref_inverse_rms(args->s, first, n, args->eps);
    float gathered[N_COEFFICIENTS] = { 0 };

    for (int j = 0; j < N_COEFFICIENTS; j++) c[j] = 0.0f;
    for (int64_t block = 0; block < n; block += PHI_BLOCK) {
        const int64_t end = block + PHI_BLOCK < n ? block + PHI_BLOCK : n;
        float even[N_COEFFICIENTS] = { 0 }, odd[N_COEFFICIENTS] = { 0 };
        for (int64_t i = block; i < end; i++) {
            const float u = (m2_ref_get(args->s, first + i) * scale) * (norm[i] + 1.0f);
            float *chain = i % 2 ? odd : even;
            for (int j = 0; j < N_COEFFICIENTS; j++)
                chain[j] = fmaf(u, phi[i * N_COEFFICIENTS + j], chain[j]);
        }
        for (int j = 0; j < N_COEFFICIENTS; j++) gathered[j] += even[j] + odd[j];
        if (end % M2_REF_BLOCK == 0 || end == n) {
            for (int j = 0; j < N_COEFFICIENTS; j++) {
                c[j] += gathered[j];
                gathered[j] = 0.0f;
            }
        }
    }
}

/* Columns first: after the last round the rows sum to 1, the columns almost. */
static void sinkhorn(float m[M2_STREAMS][M2_STREAMS])
{
    float largest = m[0][0];
    for (int i = 0; i < M2_STREAMS; i++)
        for (int j = 0; j < M2_STREAMS; j++) largest = m[i][j] > largest ? m[i][j] : largest;
    for (int i = 0; i < M2_STREAMS; i++)
        for (int j = 0; j < M2_STREAMS; j++) m[i][j] = m2_expf(m[i][j] - largest);

    for (int round = 0; round < SINKHORN_ROUNDS; round++) {
        for (int j = 0; j < M2_STREAMS; j++) {
            const float sum = (((m[0][j] + m[1][j]) + m[2][j]) + m[3][j]) + SINKHORN_EPS;
            for (int i = 0; i < M2_STREAMS; i++) m[i][j] /= sum;
        }
        for (int i = 0; i < M2_STREAMS; i++) {
            const float sum = ((m[i][0] + m[i][2]) + (m[i][1] + m[i][3])) + SINKHORN_EPS;
            for (int j = 0; j < M2_STREAMS; j++) m[i][j] /= sum;
        }
    }
}

static float scalar_of(const m2_tensor *tensor)
{
    return ((const float *)tensor->data)[0];
}

static void store(m2_tensor *rounded, m2_tensor *exact, int64_t row, int n, const float *values)
{
    for (int i = 0; i < n; i++) {
        m2_ref_put(rounded, row * n + i, values[i]);
        if (exact) m2_ref_put(exact, row * n + i, values[i]);
    }
}

static void coefficient_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_mhc_coefficients_args *args = context;
    const int64_t n = M2_STREAMS * args->s->shape[2];
    const float ms = (float)(1.0 / sqrt((double)n));
    const float a_pre = scalar_of(args->alpha_pre) * ms, a_post = scalar_of(args->alpha_post) * ms;
    const float a_res = scalar_of(args->alpha_res) * ms;
    const float *bias_pre = args->bias_pre->data, *bias_post = args->bias_post->data;
    const float *bias_res = args->bias_res->data;
    (void)worker;

    for (int64_t row = begin; row < end; row++) {
        float c[N_COEFFICIENTS], pre[M2_STREAMS], post[M2_STREAMS], res[M2_STREAMS][M2_STREAMS];
        project(args, row * n, n, m2_ref_group_of(args->groups, row), c);
        for (int i = 0; i < M2_STREAMS; i++) {
            pre[i] = m2_sigmoidf(a_pre * c[i] + bias_pre[i]);
            post[i] = 2.0f * m2_sigmoidf(a_post * c[M2_STREAMS + i] + bias_post[i]);
            for (int j = 0; j < M2_STREAMS; j++) {
                const int ij = M2_STREAMS * i + j;
                res[i][j] = a_res * c[2 * M2_STREAMS + ij] + bias_res[ij];
            }
        }
        sinkhorn(res);
        store(args->h_pre, args->h_pre_f32, row, M2_STREAMS, pre);
        store(args->h_post, args->h_post_f32, row, M2_STREAMS, post);
        store(args->h_res, args->h_res_f32, row, M2_STREAMS * M2_STREAMS, res[0]);
        if (args->phi_out)
            for (int j = 0; j < N_COEFFICIENTS; j++)
                m2_ref_put(args->phi_out, row * N_COEFFICIENTS + j, c[j]);
    }
}

void m2_ref_mhc_coefficients(const m2_ops *ops, const m2_mhc_coefficients_args *args)
{
    const int64_t n = args->s->shape[1] * args->s->shape[2];
    assert(args->s->n_dims == 3 && args->s->shape[1] == M2_STREAMS);
    assert(args->phi->shape[0] == n && args->phi->shape[1] == N_COEFFICIENTS);
    assert(args->norm->shape[0] == n * (args->groups ? args->groups->n_groups : 1));
    (void)n;
    m2_mhc_coefficients_args copy = *args;
    m2_parallel_for(ops->pool, args->s->shape[0], M2_REF_ROWS_CHUNK, coefficient_rows, &copy);
}
