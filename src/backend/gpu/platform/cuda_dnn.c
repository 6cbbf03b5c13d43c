/* cuda_dnn.c - dnn.h by cuDNN's graph interface.
 *
 * A plan is a graph of operations that cuDNN knows as attention (product, scale, mask, softmax,
 * product), described node by node, and the engine that computes it in one pass. */
#include "backend/gpu/dnn.h"

#include "backend/gpu/platform/library.h"
#include "core/log.h"

#include <stdio.h>

#if __has_include(<cudnn.h>) /* else no_dnn.c */

#include <cudnn.h>
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define N_PLANS_MAX 32 /* lengths: those of a step and of the prompts lately encoded */
#define N_PARTS_MAX 96 /* descriptors of a plan                                      */
#define N_OPS_MAX   16
#define N_CHOICES   8
#define ALIGNMENT   16
/* Earlier ones want other masks than -inf, and 9.10.0 and 9.10.1 are known to compute wrongly. */
#define VERSION_MIN 91002

#define FUNCTIONS(X)                                                                               \
    X(cudnnGetVersion)                                                                             \
    X(cudnnCreate)                                                                                 \
    X(cudnnDestroy)                                                                                \
    X(cudnnSetStream)                                                                              \
    X(cudnnGetLastErrorString)                                                                     \
    X(cudnnBackendCreateDescriptor)                                                                \
    X(cudnnBackendDestroyDescriptor)                                                               \
    X(cudnnBackendSetAttribute)                                                                    \
    X(cudnnBackendGetAttribute)                                                                    \
    X(cudnnBackendFinalize)                                                                        \
    X(cudnnBackendExecute)

typedef cudnnBackendDescriptor_t part;

/* Names of the tensors that a caller gives; those of the graph's own come after. */
enum { Q_ID = 1, K_ID, V_ID, Y_ID, LSE_ID, SCALE_ID, HIDDEN_ID, FIRST_OWN_ID };

/* What a plan is made for. */
typedef struct plan_key {
    int64_t n, n_heads, n_kv, dim, is_causal;
} plan_key;

typedef struct plan {
    plan_key key;
    uint64_t last_use;
    part chosen; /* NULL: the library has nothing for this */
    int n_parts;
    part parts[N_PARTS_MAX];
} plan;

struct m2_gpu_dnn {
    void *library;
#define FIELD(name) __typeof__(&name) name;
    FUNCTIONS(FIELD)
#undef FIELD
    cudnnHandle_t handle;
    uint64_t n_uses;
    int n_plans;
    plan plans[N_PLANS_MAX];
};

/* A plan in the making: after the first failure nothing more happens. */
typedef struct maker {
    const m2_gpu_dnn *dnn;
    plan *plan;
    int has_failed;
    int64_t next_id;
    int n_ops;
    part ops[N_OPS_MAX];
} maker;

/* ---- descriptors ---- */

static int check(maker *m, cudnnStatus_t status, const char *what)
{
    if (status == CUDNN_STATUS_SUCCESS) return 1;
    char text[256] = "";
    m->dnn->cudnnGetLastErrorString(text, sizeof text);
    m2_debug("gpu", "cuDNN, %s: status %d, %s", what, (int)status, text);
    m->has_failed = 1;
    return 0;
}

static part make(maker *m, cudnnBackendDescriptorType_t type)
{
    part made = NULL;
    if (m->has_failed || m->plan->n_parts == N_PARTS_MAX) {
        m->has_failed = 1;
        return NULL;
    }
    if (!check(m, m->dnn->cudnnBackendCreateDescriptor(type, &made), "descriptor")) return NULL;
    m->plan->parts[m->plan->n_parts++] = made;
    return made;
}

static void set(maker *m, part to, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
    if (!m->has_failed)
        check(m, m->dnn->cudnnBackendSetAttribute(to, name, type, n, values), "attribute");
}

static void set_part(maker *m, part to, cudnnBackendAttributeName_t name, part value)
{
    if (value) set(m, to, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void set_type(maker *m, part to, cudnnBackendAttributeName_t name, cudnnDataType_t type)
{
    set(m, to, name, CUDNN_TYPE_DATA_TYPE, 1, &type);
}

static part finish(maker *m, part made)
{
    if (!m->has_failed) check(m, m->dnn->cudnnBackendFinalize(made), "finishing");
    return m->has_failed ? NULL : made;
}

/* ---- tensors and operations ---- */

typedef struct layout {
    int64_t sizes[4], strides[4];
} layout;

typedef enum storage_kind { GIVEN, VIRTUAL, BY_VALUE } storage_kind;

static part tensor(maker *m, int64_t id, cudnnDataType_t type, const layout *at, storage_kind kind)
{
    const int64_t align = ALIGNMENT;
    const bool yes = true;
    part made = make(m, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(m, made, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set_type(m, made, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
    set(m, made, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, at->sizes);
    set(m, made, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, at->strides);
    set(m, made, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    if (kind == VIRTUAL) set(m, made, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (kind == BY_VALUE) set(m, made, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
    return finish(m, made);
}

/* A value between two operations, which is never stored. */
static part between(maker *m, cudnnDataType_t type, const layout *at)
{
    return tensor(m, m->next_id++, type, at, VIRTUAL);
}

static void add_op(maker *m, part op)
{
    if (!finish(m, op)) return;
    if (m->n_ops == N_OPS_MAX)
        m->has_failed = 1;
    else
        m->ops[m->n_ops++] = op;
}

static void add_product(maker *m, part a, part b, part c)
{
    part kind = make(m, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set_type(m, kind, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    finish(m, kind);
    part op = make(m, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_part(m, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_part(m, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_part(m, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_part(m, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
    add_op(m, op);
}

/* y = mode(x, b), or x where t holds and b elsewhere; b and t may be NULL, axis -1: of no axis. */
typedef struct pointwise {
    cudnnPointwiseMode_t mode;
    int64_t axis;
    cudnnDataType_t type;
    part x, b, t, y;
} pointwise;

static void add_pointwise(maker *m, pointwise it)
{
    part kind = make(m, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(m, kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &it.mode);
    set_type(m, kind, CUDNN_ATTR_POINTWISE_MATH_PREC, it.type);
    if (it.axis >= 0) set(m, kind, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &it.axis);
    finish(m, kind);
    part op = make(m, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_part(m, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
    set_part(m, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, it.x);
    set_part(m, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, it.b);
    set_part(m, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, it.t);
    set_part(m, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, it.y);
    add_op(m, op);
}

static void add_f32(maker *m, cudnnPointwiseMode_t mode, part x, part b, part y)
{
    add_pointwise(m, (pointwise){ mode, -1, CUDNN_DATA_FLOAT, x, b, NULL, y });
}

static void add_reduction(maker *m, cudnnReduceTensorOp_t how, part x, part y)
{
    part kind = make(m, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set_type(m, kind, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    set(m, kind, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how);
    finish(m, kind);
    part op = make(m, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_part(m, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_part(m, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    set_part(m, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
    add_op(m, op);
}

/* ---- the graph ---- */

static const layout one = { { 1, 1, 1, 1 }, { 1, 1, 1, 1 } };

/* Scores of keys behind their query become -inf. */
static part add_mask(maker *m, part scores, const layout *square)
{
    part row = between(m, CUDNN_DATA_INT32, square), column = between(m, CUDNN_DATA_INT32, square);
    part is_seen = between(m, CUDNN_DATA_BOOLEAN, square);
    part hidden = tensor(m, HIDDEN_ID, CUDNN_DATA_FLOAT, &one, BY_VALUE);
    part masked = between(m, CUDNN_DATA_FLOAT, square);
    add_pointwise(
        m, (pointwise){ CUDNN_POINTWISE_GEN_INDEX, 2, CUDNN_DATA_FLOAT, scores, NULL, NULL, row });
    add_pointwise(m, (pointwise){ CUDNN_POINTWISE_GEN_INDEX, 3, CUDNN_DATA_FLOAT, scores, NULL,
                                  NULL, column });
    add_pointwise(m, (pointwise){ CUDNN_POINTWISE_CMP_GE, -1, CUDNN_DATA_BOOLEAN, row, column, NULL,
                                  is_seen });
    add_pointwise(m, (pointwise){ CUDNN_POINTWISE_BINARY_SELECT, -1, CUDNN_DATA_FLOAT, scores,
                                  hidden, is_seen, masked });
    return masked;
}

/* Probabilities of each row in bf16, and its lse. */
static part add_softmax(maker *m, part scores, const layout *square, const layout *rows)
{
    const cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    part max = between(m, f32, rows), sum = between(m, f32, rows), log = between(m, f32, rows);
    part below = between(m, f32, square), power = between(m, f32, square);
    part p = between(m, CUDNN_DATA_BFLOAT16, square);
    part lse = tensor(m, LSE_ID, f32, rows, GIVEN);
    add_reduction(m, CUDNN_REDUCE_TENSOR_MAX, scores, max);
    add_f32(m, CUDNN_POINTWISE_SUB, scores, max, below);
    add_f32(m, CUDNN_POINTWISE_EXP, below, NULL, power);
    add_reduction(m, CUDNN_REDUCE_TENSOR_ADD, power, sum);
    add_f32(m, CUDNN_POINTWISE_LOG, sum, NULL, log);
    add_f32(m, CUDNN_POINTWISE_ADD, max, log, lse);
    add_f32(m, CUDNN_POINTWISE_DIV, power, sum, p);
    return p;
}

static part make_graph(maker *m)
{
    const plan_key *key = &m->plan->key;
    const int64_t n = key->n, heads = key->n_heads, kv = key->n_kv, dim = key->dim;
    const cudnnDataType_t bf16 = CUDNN_DATA_BFLOAT16;
    const layout q_at = { { 1, heads, n, dim }, { n * heads * dim, dim, heads * dim, 1 } };
    const layout k_at = { { 1, kv, dim, n }, { n * kv * dim, dim, 1, kv * dim } };
    const layout v_at = { { 1, kv, n, dim }, { n * kv * dim, dim, kv * dim, 1 } };
    const layout square = { { 1, heads, n, n }, { heads * n * n, n * n, n, 1 } };
    const layout rows = { { 1, heads, n, 1 }, { heads * n, n, 1, 1 } };
    part product = between(m, CUDNN_DATA_FLOAT, &square);
    part scores = between(m, CUDNN_DATA_FLOAT, &square);
    add_product(m, tensor(m, Q_ID, bf16, &q_at, GIVEN), tensor(m, K_ID, bf16, &k_at, GIVEN),
                product);
    add_f32(m, CUDNN_POINTWISE_MUL, product, tensor(m, SCALE_ID, CUDNN_DATA_FLOAT, &one, BY_VALUE),
            scores);
    if (key->is_causal) scores = add_mask(m, scores, &square);
    part p = add_softmax(m, scores, &square, &rows);
    add_product(m, p, tensor(m, V_ID, bf16, &v_at, GIVEN), tensor(m, Y_ID, bf16, &q_at, GIVEN));

    part graph = make(m, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(m, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, m->n_ops, m->ops);
    set(m, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &m->dnn->handle);
    return finish(m, graph);
}

/* ---- the engine ---- */

static int is_deterministic(maker *m, part config)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t n = 0;
    part engine = make(m, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    if (!engine ||
        m->dnn->cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                         CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n,
                                         &engine) != CUDNN_STATUS_SUCCESS ||
        m->dnn->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                         CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT,
                                         &n, notes) != CUDNN_STATUS_SUCCESS)
        return 0;
    if (n < 0 || n > CUDNN_NUMERICAL_NOTE_TYPE_COUNT) return 0; /* notes of a newer library */
    for (int64_t i = 0; i < n; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) return 0;
    return 1;
}

/* The plan of one configuration, NULL if it does not build or needs more memory than there is. */
static part try_config(maker *m, part config)
{
    int64_t bytes = 0, n = 0;
    if (!is_deterministic(m, config)) return NULL;
    part made = make(m, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set(m, made, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &m->dnn->handle);
    set_part(m, made, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (!finish(m, made) ||
        m->dnn->cudnnBackendGetAttribute(made, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                         CUDNN_TYPE_INT64, 1, &n, &bytes) != CUDNN_STATUS_SUCCESS)
        return NULL;
    return bytes <= (int64_t)M2_GPU_DNN_BYTES ? made : NULL;
}

/* The first that serves, in the order of the library's own static rules. */
static part choose(maker *m, part graph)
{
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    part rules = make(m, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR), configs[N_CHOICES];
    set_part(m, rules, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(m, rules, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finish(m, rules);
    for (int i = 0; i < N_CHOICES; i++) configs[i] = make(m, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    int64_t n = 0;
    if (m->has_failed || !check(m,
                                m->dnn->cudnnBackendGetAttribute(
                                    rules, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, N_CHOICES, &n, configs),
                                "engines"))
        return NULL;
    for (int64_t i = 0; i < n && i < N_CHOICES; i++) {
        m->has_failed = 0;
        part made = try_config(m, configs[i]);
        if (made) return made;
    }
    return NULL;
}

/* ---- plans ---- */

static void drop(const m2_gpu_dnn *dnn, plan *it)
{
    while (it->n_parts > 0) dnn->cudnnBackendDestroyDescriptor(it->parts[--it->n_parts]);
    it->chosen = NULL;
}

/* A free place, else that of the plan that nobody asked for the longest time. */
static plan *place_for_plan(m2_gpu_dnn *dnn)
{
    if (dnn->n_plans < N_PLANS_MAX) return &dnn->plans[dnn->n_plans++];
    plan *oldest = &dnn->plans[0];
    for (int i = 1; i < N_PLANS_MAX; i++)
        if (dnn->plans[i].last_use < oldest->last_use) oldest = &dnn->plans[i];
    drop(dnn, oldest);
    return oldest;
}

static plan *plan_for(m2_gpu_dnn *dnn, const m2_gpu_heads *heads)
{
    const plan_key key = { heads->n, heads->n_heads, heads->n_kv, heads->dim,
                           heads->is_causal != 0 };
    for (int i = 0; i < dnn->n_plans; i++)
        if (memcmp(&dnn->plans[i].key, &key, sizeof key) == 0) return &dnn->plans[i];
    plan *made = place_for_plan(dnn);
    *made = (plan){ .key = key };
    maker m = { .dnn = dnn, .plan = made, .next_id = FIRST_OWN_ID };
    part graph = make_graph(&m);
    if (graph) made->chosen = choose(&m, graph);
    m2_debug("gpu", "attention of %lld x %lld heads of %lld: %s", (long long)key.n,
             (long long)key.n_heads, (long long)key.dim, made->chosen ? "cuDNN" : "own kernel");
    return made;
}

static cudnnStatus_t execute(const m2_gpu_dnn *dnn, const plan *chosen, const m2_gpu_heads *heads)
{
    float scale = heads->scale, hidden = -INFINITY;
    const int64_t ids[] = { Q_ID, K_ID, V_ID, Y_ID, LSE_ID, SCALE_ID, HIDDEN_ID };
    const void *const data[] = {
        heads->q, heads->k, heads->v, heads->y, heads->lse, &scale, &hidden
    };
    const int64_t n = heads->is_causal ? 7 : 6;
    part pack = NULL;
    cudnnStatus_t status =
        dnn->cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (status == CUDNN_STATUS_SUCCESS)
        status = dnn->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
                                               CUDNN_TYPE_INT64, n, ids);
    if (status == CUDNN_STATUS_SUCCESS)
        status = dnn->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                               CUDNN_TYPE_VOID_PTR, n, data);
    if (status == CUDNN_STATUS_SUCCESS)
        status = dnn->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                               CUDNN_TYPE_VOID_PTR, 1, &heads->memory);
    if (status == CUDNN_STATUS_SUCCESS) status = dnn->cudnnBackendFinalize(pack);
    if (status == CUDNN_STATUS_SUCCESS)
        status = dnn->cudnnBackendExecute(dnn->handle, chosen->chosen, pack);
    if (pack) dnn->cudnnBackendDestroyDescriptor(pack);
    return status;
}

int m2_gpu_dnn_attend(m2_gpu *gpu, const m2_gpu_heads *heads)
{
    m2_gpu_dnn *dnn = gpu->dnn;
    plan *chosen = plan_for(dnn, heads);
    chosen->last_use = ++dnn->n_uses;
    if (!chosen->chosen) return 0;
    const cudnnStatus_t status = execute(dnn, chosen, heads);
    if (status != CUDNN_STATUS_SUCCESS && gpu->error == gpuSuccess) {
        gpu->error = cudaErrorUnknown;
        snprintf(gpu->error_text, sizeof gpu->error_text,
                 "attention (cuDNN status %d, %lld x %lld x %lld)", (int)status,
                 (long long)heads->n, (long long)heads->n_heads, (long long)heads->dim);
        gpu->error_op = gpu->error_text;
    }
    return 1;
}

/* ---- opening ---- */

static int find_functions(m2_gpu_dnn *dnn)
{
#define FIND(name)                                                                                 \
    *(void **)&dnn->name = dlsym(dnn->library, #name);                                             \
    if (!dnn->name) return 0;
    FUNCTIONS(FIND)
#undef FIND
    return 1;
}

static int open_handle(const m2_gpu *gpu, m2_gpu_dnn *dnn)
{
    return dnn->cudnnCreate(&dnn->handle) == CUDNN_STATUS_SUCCESS &&
           dnn->cudnnSetStream(dnn->handle, gpu->stream) == CUDNN_STATUS_SUCCESS;
}

m2_gpu_dnn *m2_gpu_dnn_open(m2_gpu *gpu, int is_wanted, char *text, size_t bytes)
{
    char name[32], path[4096];
    m2_gpu_dnn *dnn = calloc(1, sizeof *dnn);
    if (!dnn) {
        snprintf(text, bytes, "no memory for cuDNN");
        return NULL;
    }
    snprintf(name, sizeof name, "libcudnn.so.%d", CUDNN_MAJOR);
    dnn->library = m2_gpu_library_open(name, path, sizeof path);
    if (!dnn->library) {
        snprintf(text, bytes, "no %s", name);
        free(dnn);
        return NULL;
    }
    if (!find_functions(dnn) || dnn->cudnnGetVersion() < VERSION_MIN ||
        (is_wanted && !open_handle(gpu, dnn))) {
        cudaGetLastError();
        snprintf(text, bytes, "%.64s cannot be used", path);
        m2_gpu_dnn_close(dnn);
        return NULL;
    }
    snprintf(text, bytes, "cuDNN %zu%s", dnn->cudnnGetVersion(), is_wanted ? "" : " (not used)");
    m2_debug("gpu", "%s", path);
    if (is_wanted) return dnn;
    m2_gpu_dnn_close(dnn);
    return NULL;
}

void m2_gpu_dnn_close(m2_gpu_dnn *dnn)
{
    if (!dnn) return;
    for (int i = 0; i < dnn->n_plans; i++) drop(dnn, &dnn->plans[i]);
    if (dnn->handle) dnn->cudnnDestroy(dnn->handle);
    dlclose(dnn->library);
    free(dnn);
}

#endif
