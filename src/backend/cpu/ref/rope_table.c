/* rope_table.c - sines and cosines of the three rotary axes of every token.
 *
 *   scale = (ref - 1) / (size - 1), 1 where both are 1;  centre = (size - 1) / 2, 0 in time
 *   angle[axis][i] = ((coord - centre) * scale) * band[i], f32 in this order
 *
 * A text of more than one token has reference 1 in time, hence scale 0: it is not turned at all.
 */
#include "backend/cpu/ref/reduce.h"
#include "backend/cpu/ref/ref.h"
#include "core/fmath.h"

#define N_AXES 3

static void fill_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const m2_rope_table_args *args = context;
    const int64_t n_bands = args->bands->shape[0];
    const float *bands = args->bands->data;
    (void)worker;

    for (int64_t row = begin; row < end; row++) {
        const float *coord = (const float *)args->coords->data + row * 9;
        const float *size = coord + 3, *reference = coord + 6;
        float *sines = (float *)args->table->data + row * 2 * N_AXES * n_bands;
        float *cosines = sines + N_AXES * n_bands;
        for (int axis = 0; axis < N_AXES; axis++) {
            float scale = (reference[axis] - 1.0f) / (size[axis] - 1.0f);
            if (reference[axis] == 1.0f && size[axis] == 1.0f) scale = 1.0f;
            const float centre = axis == 0 ? 0.0f : (size[axis] - 1.0f) / 2.0f;
            const float position = (coord[axis] - centre) * scale;
            for (int64_t i = 0; i < n_bands; i++) {
                const float angle = position * bands[i];
                sines[axis * n_bands + i] = m2_sinf(angle);
                cosines[axis * n_bands + i] = m2_cosf(angle);
            }
        }
    }
}

void m2_ref_rope_table(const m2_ops *ops, const m2_rope_table_args *args)
{
    assert(args->coords->shape[1] == 9 && args->coords->dtype == M2_F32);
    assert(args->table->shape[0] == args->coords->shape[0] && args->table->dtype == M2_F32);
    assert(args->table->shape[1] == 2 * N_AXES * args->bands->shape[0]);
    m2_rope_table_args copy = *args;
    m2_parallel_for(ops->pool, args->coords->shape[0], M2_REF_ROWS_CHUNK, fill_rows, &copy);
}
