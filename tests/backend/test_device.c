#include "support/check.h"

#include "backend/device.h"

#include <stdlib.h>
#include <string.h>

/* A device of the host's memory that may fail in `wait`. */
static m2_status wait_status;

static m2_status some_wait(const m2_ops *ops)
{
    (void)ops;
    return wait_status == M2_OK ? M2_OK : m2_fail(wait_status, "the device has failed");
}

static void some_download(const m2_ops *ops, void *to, const m2_tensor *from)
{
    (void)ops;
    memcpy(to, from->data, m2_tensor_bytes(from));
}

/* What cannot be waited for is not handed over: callers go on their way out and free nothing, so the
 * copy (frames of a window) would be lost.  A leak checker sees that, the pointers show it anywhere. */
static void a_copy_that_cannot_be_waited_for_is_freed(void **state)
{
    (void)state;
    const m2_device_api api = { .wait = some_wait };
    float values[4] = { 1, 2, 3, 4 };
    const m2_tensor tensor = m2_tensor_over(values, M2_F32, 4);
    m2_ops ops = { 0 };
    ops.device_api = &api;
    ops.download = some_download;
    m2_tensor host;
    void *copy = values;
    wait_status = M2_ERR_INTERNAL;
    check_fails(m2_device_fetch(&ops, &tensor, &host, &copy), M2_ERR_INTERNAL, "has failed");
    assert_null(copy);
    wait_status = M2_OK;
    check_ok(m2_device_fetch(&ops, &tensor, &host, &copy));
    assert_ptr_equal(host.data, copy);
    assert_memory_equal(copy, values, sizeof values);
    free(copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copy_that_cannot_be_waited_for_is_freed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
