/* draw_decoder.c - cases of the decoders' operators on single values and rows. */
#include "backend/draw.h"

void draw_rms_act(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    static const int64_t most[] = { 64, 128, 256, 512, 700 };
    const int64_t kind = random_turn(c, 6), channels = draw_width(c, kind, most, 300);
    const m2_dtype act = turn_act(c);
    const int64_t n = draw_size(c, 200);
    const m2_activation activation = (m2_activation)random_int(c, 0, 4);
    m2_tensor x = draw_tensor(c, act, 1, n, channels);
    *y_out = random_int(c, 0, 1) ? x : m2_tensor_make(&c->arena, act, n, channels);
    ops->rms_act(ops,
                 &(m2_rms_act_args){ .x = &x, .eps = 1e-6f, .activation = activation, .y = y_out });
}

void draw_denormalise(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const int64_t channels = random_int(c, 1, 50), t_in = random_int(c, 1, 5);
    const int64_t height = random_int(c, 1, 9), width = random_int(c, 1, 9);
    m2_tensor z = draw_tensor(c, M2_F32, 1, channels, t_in, height, width);
    m2_tensor mean = random_tensor(c, M2_F32, 1, channels);
    m2_tensor std = random_tensor(c, M2_F32, 1, channels);
    for (int64_t i = 0; i < channels; i++)
        ((float *)std.data)[i] = 0.5f + fabsf(((float *)std.data)[i]);
    *y_out = m2_tensor_make(&c->arena, draw_act(c), random_int(c, 1, 6), height, width, channels);
    ops->denormalise(
        ops,
        &(m2_denormalise_args){
            .z = &z, .mean = &mean, .std = &std, .t_begin = random_int(c, 0, t_in), .y = y_out });
}

void draw_snake(random_case *c, const m2_ops *ops, m2_tensor *y_out)
{
    const int64_t length = draw_size(c, 200), channels = draw_size(c, 200);
    m2_tensor x = draw_tensor(c, M2_F32, 2, length, channels);
    m2_tensor alpha = random_tensor(c, M2_F32, 0.5f, channels);
    m2_tensor beta = random_tensor(c, M2_F32, 0.5f, channels);
    *y_out = random_int(c, 0, 1) ? x : m2_tensor_make(&c->arena, M2_F32, length, channels);
    ops->snake(ops, &(m2_snake_args){ .x = &x, .alpha = &alpha, .beta = &beta, .y = y_out });
}
