#include "support/noisy_ops.h"

#include "support/op_fields.h"

static void disturb(m2_noisy *noisy, const m2_tensor *tensor)
{
    float *values = tensor->data;
    for (int64_t i = 0; i < m2_tensor_count(tensor); i++) {
        const double off = (double)m2_test_random_uniform(&noisy->random, -1, 1) * 0x1p-24;
        values[i] = (float)((double)values[i] * (1 + off));
    }
}

static void noisy_call(const m2_ops *ops, m2_op_idx op, const void *args)
{
    m2_noisy *noisy = ops->device;
    const m2_op_info *info = &m2_op_infos[op];
    info->call(&noisy->cpu, args);
    for (int i = 0; i < info->n_fields; i++) {
        const m2_field_use use = info->fields[i].use;
        const m2_tensor *tensor = m2_field_get(&info->fields[i], args);
        if (tensor && tensor->dtype == M2_F32 && (use == M2_FIELD_OUT || use == M2_FIELD_INOUT))
            disturb(noisy, tensor);
    }
}

#define NOISY_SLOT(name)                                                                           \
    static void noisy_##name(const m2_ops *ops, const m2_##name##_args *args)                      \
    {                                                                                              \
        noisy_call(ops, M2_OP_##name, args);                                                       \
    }
M2_OPS(NOISY_SLOT)
#undef NOISY_SLOT

void m2_ops_init_noisy(m2_ops *ops, m2_noisy *noisy, const m2_ops *cpu, uint64_t seed)
{
    *noisy = (m2_noisy){ .cpu = *cpu, .random = { seed } };
    *ops = *cpu;
    ops->device = noisy;
#define SET_SLOT(name) ops->name = noisy_##name;
    M2_OPS(SET_SLOT)
#undef SET_SLOT
}
