/* Plans of attention by cuDNN, against a library made up here: descriptors that are counted, engines
 * that can be refused.  No GPU, no cuDNN, and nothing of the runtime. */
#include "backend/gpu/dnn.h"
#include "backend/gpu/platform/library.h"
#include "support/check.h"

#include <cudnn.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENGINES   3
#define VALUES    16
#define MASK_OPS  4
#define PLANS_MAX 32 /* of cuda_dnn.c */

typedef struct descriptor {
    cudnnBackendDescriptorType_t type;
    int is_finished, engine, n_members;
    int64_t id, numbers[VALUES];
    void *pointers[VALUES];
} descriptor;

/* What the made-up library is like, and what was done with it. */
static struct {
    int is_absent, cannot_create;
    size_t version;
    int is_random[ENGINES], does_not_build[ENGINES];
    int64_t bytes[ENGINES];
    int n_alive, n_plans, n_runs, n_ops, last_engine;
    descriptor last_pack;
    int n_handles;
    cudaStream_t stream;
} fake;

static void fake_reset(void)
{
    memset(&fake, 0, sizeof fake);
    fake.version = 91900;
}

/* ---- the library ---- */

void *m2_gpu_library_open(const char *name, char *path, size_t bytes)
{
    snprintf(path, bytes, "/made/up/%s", name);
    return fake.is_absent ? NULL : dlopen(NULL, RTLD_NOW);
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

size_t cudnnGetVersion(void)
{
    return fake.version;
}

void cudnnGetLastErrorString(char *message, size_t max_size)
{
    snprintf(message, max_size, "made up");
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    if (fake.cannot_create) return CUDNN_STATUS_NOT_INITIALIZED;
    *handle = (cudnnHandle_t)&fake;
    fake.n_handles++;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    assert_ptr_equal(handle, &fake);
    fake.n_handles--;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    (void)handle;
    fake.stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *made)
{
    descriptor *d = calloc(1, sizeof *d);
    d->type = type;
    fake.n_alive++;
    *made = d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t it)
{
    free(it);
    fake.n_alive--;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t it,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t n,
                                       const void *values)
{
    descriptor *d = it;
    assert_false(d->is_finished);
    if (name == CUDNN_ATTR_TENSOR_UNIQUE_ID) d->id = *(const int64_t *)values;
    if (name == CUDNN_ATTR_OPERATIONGRAPH_OPS) fake.n_ops = (int)n;
    if (name == CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)
        memcpy(d->numbers, values, (size_t)n * sizeof(int64_t));
    if (name == CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS) {
        memcpy(d->pointers, values, (size_t)n * sizeof(void *));
        d->n_members = (int)n;
    }
    if (name == CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)
        d->engine = (*(descriptor *const *)values)->engine;
    /* What an operation is made of was finished before. */
    for (int64_t i = 0; i < n && type == CUDNN_TYPE_BACKEND_DESCRIPTOR; i++)
        assert_true(((descriptor *const *)values)[i]->is_finished);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t it,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room, int64_t *n,
                                       void *values)
{
    const descriptor *d = it;
    (void)type;
    *n = 1;
    switch ((int)name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        *n = room < ENGINES ? room : ENGINES;
        for (int64_t i = 0; i < *n; i++) {
            descriptor *config = ((descriptor **)values)[i];
            config->engine = (int)i;
            config->is_finished = 1;
        }
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        (*(descriptor **)values)->engine = d->engine;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        *(cudnnBackendNumericalNote_t *)values = fake.is_random[d->engine]
                                                     ? CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC
                                                     : CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        *(int64_t *)values = fake.bytes[d->engine];
        return CUDNN_STATUS_SUCCESS;
    default:
        return CUDNN_STATUS_NOT_SUPPORTED;
    }
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t it)
{
    descriptor *d = it;
    if (d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        if (fake.does_not_build[d->engine]) return CUDNN_STATUS_NOT_SUPPORTED;
        fake.n_plans++;
    }
    d->is_finished = 1;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack)
{
    const descriptor *d = plan;
    (void)handle;
    assert_true(d->is_finished);
    fake.last_engine = d->engine;
    fake.last_pack = *(const descriptor *)pack;
    fake.n_runs++;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- tests ---- */

static char place[16];

static m2_gpu opened(void)
{
    char text[160] = "";
    m2_gpu gpu = { .stream = (cudaStream_t)place };
    gpu.dnn = m2_gpu_dnn_open(&gpu, 1, text, sizeof text);
    assert_non_null(gpu.dnn);
    assert_string_equal(text, "cuDNN 91900");
    assert_ptr_equal(fake.stream, place);
    return gpu;
}

static m2_gpu_heads heads_of(int64_t n, int is_causal)
{
    return (m2_gpu_heads){ .n = n,
                           .n_heads = 24,
                           .n_kv = 4,
                           .dim = 128,
                           .is_causal = is_causal,
                           .scale = 0.5f,
                           .q = place + 1,
                           .k = place + 2,
                           .v = place + 3,
                           .y = place + 4,
                           .lse = (float *)(void *)(place + 8),
                           .memory = place + 5 };
}

/* Catches a run that ends where only a library is missing, old or broken. */
static void what_cannot_be_used_is_told_and_left(void **state)
{
    (void)state;
    m2_gpu gpu = { 0 };
    char text[160];
    fake_reset();
    fake.is_absent = 1;
    assert_null(m2_gpu_dnn_open(&gpu, 1, text, sizeof text));
    assert_string_equal(text, "no libcudnn.so.9");
    fake_reset();
    fake.version = 91001;
    assert_null(m2_gpu_dnn_open(&gpu, 1, text, sizeof text));
    assert_string_equal(text, "/made/up/libcudnn.so.9 cannot be used");
    fake_reset();
    fake.cannot_create = 1;
    assert_null(m2_gpu_dnn_open(&gpu, 1, text, sizeof text));
    assert_string_equal(text, "/made/up/libcudnn.so.9 cannot be used");
    m2_gpu_dnn_close(NULL);
}

/* Catches a third of a second at every start for a library that nobody calls. */
static void unwanted_it_is_named_but_not_opened(void **state)
{
    (void)state;
    m2_gpu gpu = { 0 };
    char text[160];
    fake_reset();
    fake.cannot_create = 1;
    assert_null(m2_gpu_dnn_open(&gpu, 0, text, sizeof text));
    assert_string_equal(text, "cuDNN 91900 (not used)");
}

/* Catches a plan for each call, and one plan for two different masks. */
static void a_plan_is_made_once_for_a_shape(void **state)
{
    (void)state;
    fake_reset();
    m2_gpu gpu = opened();
    const m2_gpu_heads open_heads = heads_of(500, 0), causal = heads_of(500, 1);
    for (int i = 0; i < 3; i++) assert_int_equal(m2_gpu_dnn_attend(&gpu, &open_heads), 1);
    const int n_ops = fake.n_ops;
    assert_int_equal(fake.n_plans, 1);
    assert_int_equal(m2_gpu_dnn_attend(&gpu, &causal), 1);
    assert_int_equal(fake.n_plans, 2);
    assert_int_equal(fake.n_ops, n_ops + MASK_OPS);
    assert_int_equal(fake.n_runs, 4);
    assert_int_equal(gpu.error, gpuSuccess);
    m2_gpu_dnn_close(gpu.dnn);
    assert_int_equal(fake.n_alive, 0);
    assert_int_equal(fake.n_handles, 0);
}

/* Catches tensors that go to another's place, and a mask value without a mask. */
static void every_tensor_is_given_once(void **state)
{
    (void)state;
    fake_reset();
    m2_gpu gpu = opened();
    for (int is_causal = 0; is_causal < 2; is_causal++) {
        const m2_gpu_heads heads = heads_of(77, is_causal);
        const void *const given[] = { heads.q, heads.k, heads.v, heads.y, heads.lse };
        assert_int_equal(m2_gpu_dnn_attend(&gpu, &heads), 1);
        assert_int_equal(fake.last_pack.n_members, 6 + is_causal);
        for (int i = 0; i < 5; i++) assert_ptr_equal(fake.last_pack.pointers[i], given[i]);
        for (int i = 0; i < fake.last_pack.n_members; i++)
            for (int j = 0; j < i; j++)
                assert_true(fake.last_pack.numbers[i] != fake.last_pack.numbers[j]);
    }
    m2_gpu_dnn_close(gpu.dnn);
    assert_int_equal(fake.n_alive, 0);
}

/* Catches bits that change from run to run, and memory behind the workspace. */
static void the_first_engine_that_serves_is_taken(void **state)
{
    (void)state;
    for (int reason = 0; reason < 3; reason++) {
        fake_reset();
        fake.is_random[0] = reason == 0;
        fake.does_not_build[0] = reason == 1;
        fake.bytes[0] = reason == 2 ? (int64_t)M2_GPU_DNN_BYTES + 1 : 0;
        fake.bytes[1] = (int64_t)M2_GPU_DNN_BYTES;
        m2_gpu gpu = opened();
        const m2_gpu_heads heads = heads_of(300, 0);
        assert_int_equal(m2_gpu_dnn_attend(&gpu, &heads), 1);
        assert_int_equal(fake.last_engine, 1);
        m2_gpu_dnn_close(gpu.dnn);
        assert_int_equal(fake.n_alive, 0);
    }
}

static void a_shape_that_no_engine_takes_is_refused_and_not_asked_again(void **state)
{
    (void)state;
    fake_reset();
    m2_gpu gpu = opened();
    for (int i = 0; i < ENGINES; i++) fake.does_not_build[i] = 1;
    const m2_gpu_heads heads = heads_of(300, 1);
    assert_int_equal(m2_gpu_dnn_attend(&gpu, &heads), 0);
    const int n_alive = fake.n_alive;
    for (int i = 0; i < ENGINES; i++) fake.does_not_build[i] = 0;
    assert_int_equal(m2_gpu_dnn_attend(&gpu, &heads), 0);
    assert_int_equal(fake.n_alive, n_alive);
    assert_int_equal(fake.n_runs, 0);
    m2_gpu_dnn_close(gpu.dnn);
    assert_int_equal(fake.n_alive, 0);
}

/* Catches plans that grow without end, and the plan of the running step thrown away for a prompt's. */
static void the_plan_that_was_not_asked_for_the_longest_makes_room(void **state)
{
    (void)state;
    fake_reset();
    m2_gpu gpu = opened();
    const m2_gpu_heads step = heads_of(15015, 0);
    int n_alive = 0;
    for (int i = 0; i < 3 * PLANS_MAX; i++) {
        const m2_gpu_heads prompt = heads_of(1 + i, 0);
        assert_int_equal(m2_gpu_dnn_attend(&gpu, &step), 1);
        assert_int_equal(m2_gpu_dnn_attend(&gpu, &prompt), 1);
        if (i == PLANS_MAX - 2) n_alive = fake.n_alive;
    }
    assert_int_equal(fake.n_alive, n_alive);
    assert_int_equal(fake.n_plans, 1 + 3 * PLANS_MAX);
    m2_gpu_dnn_close(gpu.dnn);
    assert_int_equal(fake.n_alive, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_used_is_told_and_left),
        cmocka_unit_test(unwanted_it_is_named_but_not_opened),
        cmocka_unit_test(a_plan_is_made_once_for_a_shape),
        cmocka_unit_test(every_tensor_is_given_once),
        cmocka_unit_test(the_first_engine_that_serves_is_taken),
        cmocka_unit_test(a_shape_that_no_engine_takes_is_refused_and_not_asked_again),
        cmocka_unit_test(the_plan_that_was_not_asked_for_the_longest_makes_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
