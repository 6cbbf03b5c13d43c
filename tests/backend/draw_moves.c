/* draw_moves.c - cases of the operators that move, convert or count values. */
#include "backend/draw.h"

void draw_gather_rows(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    static const m2_dtype types[] = { M2_BF16, M2_F32, M2_I32 };
    const m2_dtype dtype = types[random_int(c, 0, 2)];
    const int64_t rows = draw_size(c, 60), n = draw_size(c, 90), width = draw_size(c, 700);
    m2_tensor idx = m2_tensor_make(&c->arena, M2_I32, n);
    for (int64_t i = 0; i < n; i++) ((int32_t *)idx.data)[i] = (int32_t)random_int(c, -1, rows - 1);
    m2_tensor x = random_tensor(c, dtype, 100, rows, width);
    *y_out = m2_tensor_make(&c->arena, dtype, n, width);
    ops->gather_rows(ops, &(m2_gather_rows_args){ .x = &x, .idx = &idx, .y = y_out });
}

void draw_convert(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const m2_dtype act = turn_act(c), out_type = turn_act(c);
    m2_tensor x = draw_tensor(c, act, 100, random_int(c, 1, 9000));
    *y_out = m2_tensor_make(&c->arena, out_type, x.shape[0]);
    ops->convert(ops, &(m2_convert_args){ .x = &x, .y = y_out });
}

void draw_transpose(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    m2_tensor x = draw_tensor(c, M2_F32, 1, draw_size(c, 150), draw_size(c, 150));
    *y_out = m2_tensor_make(&c->arena, M2_F32, x.shape[1], x.shape[0]);
    ops->transpose(ops, &(m2_transpose_args){ .x = &x, .y = y_out });
}

void draw_find_nonfinite(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    static const float bad[] = { INFINITY, -INFINITY, NAN };
    m2_tensor x = random_tensor(c, draw_act(c), 1e3f, random_int(c, 1, 70000));
    const size_t bytes = m2_dtype_bytes(x.dtype);
    if (random_int(c, 0, 1))
        m2_convert(&bad[random_int(c, 0, 2)], M2_F32,
                   (char *)x.data + (size_t)random_int(c, 0, x.shape[0] - 1) * bytes, x.dtype, 1);
    *y_out = m2_tensor_make(&c->arena, M2_I32, 1);
    *(int32_t *)y_out->data = (int32_t)random_int(c, 0, 3) == 0; /* never cleared */
    ops->find_nonfinite(ops, &(m2_find_nonfinite_args){ .x = &x, .flag = y_out });
}

void draw_mean_rows(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const m2_dtype act = draw_act(c);
    const int64_t rows = draw_size(c, 90), n = random_int(c, 0, 60);
    m2_tensor x = draw_tensor(c, act, 1, rows, draw_size(c, 300));
    m2_tensor idx = m2_tensor_make(&c->arena, M2_I32, n);
    for (int64_t i = 0; i < n; i++) ((int32_t *)idx.data)[i] = (int32_t)random_int(c, 0, rows - 1);
    *y_out = m2_tensor_make(&c->arena, act, x.shape[1]);
    ops->mean_rows(ops, &(m2_mean_rows_args){ .x = &x, .idx = &idx, .y = y_out });
}

static m2_tensor draw_frames(random_case *c, m2_dtype act, int64_t channels)
{
    return draw_tensor(c, act, 1, random_int(c, 1, 4), random_int(c, 1, 9), random_int(c, 1, 9),
                       channels);
}

void draw_upsample_nearest(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    m2_tensor x = draw_frames(c, draw_act(c), draw_size(c, 70));
    const int fh = (int)random_int(c, 1, 3), fw = (int)random_int(c, 1, 3);
    *y_out = m2_tensor_make(&c->arena, x.dtype, x.shape[0], x.shape[1] * fh, x.shape[2] * fw,
                            x.shape[3]);
    ops->upsample_nearest(ops,
                          &(m2_upsample_nearest_args){ .x = &x, .fh = fh, .fw = fw, .y = y_out });
}

void draw_split_time(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    m2_tensor x = draw_frames(c, draw_act(c), 2 * draw_size(c, 40));
    const int n_drop = (int)random_int(c, 0, 1);
    *y_out = m2_tensor_make(&c->arena, x.dtype, 2 * x.shape[0] - n_drop, x.shape[1], x.shape[2],
                            x.shape[3] / 2);
    ops->split_time(ops, &(m2_split_time_args){ .x = &x, .n_drop = n_drop, .y = y_out });
}

void draw_pixel_shuffle(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    m2_tensor x = draw_frames(c, draw_act(c), 4 * draw_size(c, 20));
    *y_out = m2_tensor_make(&c->arena, x.dtype, x.shape[0], 2 * x.shape[1], 2 * x.shape[2],
                            x.shape[3] / 4);
    ops->pixel_shuffle(ops, &(m2_pixel_shuffle_args){
                                .x = &x, .column_outer = (int)random_int(c, 0, 1), .y = y_out });
}

void draw_frames_u8(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    m2_tensor x = draw_tensor(c, draw_act(c), 0.8f, random_int(c, 1, 9000));
    *y_out = m2_tensor_make(&c->arena, M2_U8, x.shape[0]);
    ops->frames_u8(ops, &(m2_frames_u8_args){ .x = &x, .y = y_out });
}
