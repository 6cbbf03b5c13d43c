#include "backend/device.h"

#define MEASURE_SLOT(name)                                                                         \
    static void measure_##name(const m2_ops *ops, const m2_##name##_args *args)                    \
    {                                                                                              \
        (void)ops;                                                                                 \
        (void)args;                                                                                \
    }
M2_OPS(MEASURE_SLOT)
#undef MEASURE_SLOT

static void measure_upload(const m2_ops *ops, m2_tensor *to, const void *from_host)
{
    (void)ops;
    (void)to;
    (void)from_host;
}

static void measure_download(const m2_ops *ops, void *to_host, const m2_tensor *from)
{
    (void)ops;
    (void)to_host;
    (void)from;
}

void m2_ops_init_measure(m2_ops *ops)
{
    *ops = (m2_ops){
        .backend = "measure", .isa = "none", .is_measuring = 1, .device_api = &m2_host_device
    };
    ops->upload = measure_upload;
    ops->download = measure_download;
#define SET_SLOT(name) ops->name = measure_##name;
    M2_OPS(SET_SLOT)
#undef SET_SLOT
}
