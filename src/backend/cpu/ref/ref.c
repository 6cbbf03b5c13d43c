#include "backend/cpu/ref/ref.h"

#include "backend/cpu/cpu.h"
#include "backend/device.h"

#include <string.h>

static void ref_upload(const m2_ops *ops, m2_tensor *to, const void *from_host)
{
    (void)ops;
    memcpy(to->data, from_host, m2_tensor_bytes(to));
}

static void ref_download(const m2_ops *ops, void *to_host, const m2_tensor *from)
{
    (void)ops;
    memcpy(to_host, from->data, m2_tensor_bytes(from));
}

void m2_ops_init_ref(m2_ops *ops)
{
    ops->backend = "cpu";
    ops->isa = "ref";
    ops->is_measuring = 0;
    ops->device_api = &m2_host_device;
    ops->upload = ref_upload;
    ops->download = ref_download;
#define SET_SLOT(name) ops->name = m2_ref_##name;
    M2_OPS(SET_SLOT)
#undef SET_SLOT
}
