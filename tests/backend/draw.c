#include "backend/draw.h"

/* Small counts often, larger ones now and then, and the edges of blocks. */
int64_t draw_size(random_case *c, int64_t largest)
{
    static const int64_t edges[] = { 1, 16, 31, 32, 33, 64, 96, 97, 128, 129, 256 };
    const int64_t kind = random_int(c, 0, 3);
    int64_t n =
        kind == 0 ? edges[random_int(c, 0, 10)] : random_int(c, 1, kind == 1 ? 12 : largest);
    return n < largest ? n : largest;
}

/* Now and then a zero row, denormals, an infinity. */
static void disturb(random_case *c, m2_tensor *tensor)
{
    const int64_t n = m2_tensor_count(tensor), width = tensor->shape[tensor->n_dims - 1];
    const int64_t kind = random_int(c, 0, 5);
    const size_t bytes = m2_dtype_bytes(tensor->dtype);
    if (n == 0) return;
    if (kind == 0) memset(tensor->data, 0, (size_t)width * bytes);
    for (int64_t i = 0; i < n / 7 && kind == 1 && !c->is_plain; i++) {
        const float tiny = (i & 1 ? -1.0f : 1.0f) * 0x1p-130f * (float)(i + 1);
        m2_convert(&tiny, M2_F32, (char *)tensor->data + (size_t)(i * 7) * bytes, tensor->dtype, 1);
    }
    if (kind == 2 && !c->is_plain) {
        const float infinite = random_int(c, 0, 1) ? INFINITY : -INFINITY;
        m2_convert(&infinite, M2_F32,
                   (char *)tensor->data + (size_t)random_int(c, 0, n - 1) * bytes, tensor->dtype,
                   1);
    }
}

m2_tensor drawn(random_case *c, float scale, m2_tensor tensor)
{
    random_fill(c, &tensor, scale);
    disturb(c, &tensor);
    return tensor;
}

m2_dtype draw_act(random_case *c)
{
    return random_int(c, 0, 1) ? M2_BF16 : M2_F32;
}

m2_dtype turn_act(random_case *c)
{
    return random_turn(c, 2) ? M2_BF16 : M2_F32;
}

int64_t draw_width_of(random_case *c, int64_t kind, const int64_t *most, int64_t n_most,
                      int64_t largest)
{
    if (kind >= n_most) return draw_size(c, largest);
    return 8 * random_int(c, kind > 0 ? most[kind - 1] / 8 + 1 : 1, most[kind] / 8);
}

int64_t draw_head_dim(random_case *c)
{
    static const int64_t kinds[][3] = { { 64, 1, 2 }, { 64, 3, 4 }, { 8, 17, 32 }, { 8, 1, 16 } };
    const int64_t *kind = kinds[random_turn(c, 4)];
    return kind[0] * random_int(c, kind[1], kind[2]);
}

/* One to three groups over n rows, some of them empty. */
m2_groups draw_groups(random_case *c, int64_t n)
{
    m2_groups groups = { .n_groups = (int)random_int(c, 1, 3) };
    for (int g = 1; g < groups.n_groups; g++)
        groups.begin[g] = random_int(c, groups.begin[g - 1], n);
    groups.begin[groups.n_groups] = n;
    return groups;
}

m2_tensor draw_order(random_case *c, int64_t n)
{
    m2_tensor seq = m2_tensor_make(&c->arena, M2_I32, n);
    int32_t *at = seq.data;
    for (int64_t i = 0; i < n; i++) {
        const int64_t j = random_int(c, 0, i);
        at[i] = at[j];
        at[j] = (int32_t)i;
    }
    return seq;
}
