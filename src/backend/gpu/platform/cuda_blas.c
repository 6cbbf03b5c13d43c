/* cuda_blas.c - blas.h by cuBLASLt. */
#include "backend/gpu/blas.h"

#include "backend/gpu/platform/library.h"
#include "core/log.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Algorithms are asked for with the row count of a 272p step, whatever comes. */
#define REFERENCE_ROWS  29616
#define WORKSPACE_BYTES ((size_t)32 << 20)
#define ROW_ALIGN       16
#define N_CHOICES       16
#define N_PLANS_MAX     64

#define FUNCTIONS(X)                                                                               \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtGetVersion)                                                                          \
    X(cublasLtMatmulDescInit_internal)                                                             \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatrixLayoutInit_internal)                                                           \
    X(cublasLtMatrixLayoutSetAttribute)                                                            \
    X(cublasLtMatmulPreferenceInit_internal)                                                       \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmulAlgoConfigGetAttribute)                                                        \
    X(cublasLtMatmul)

/* What a plan is made for: everything but the number of rows. */
typedef struct plan_key {
    int64_t k, out;
    m2_dtype dtype, y_dtype, bias_dtype;
    int has_bias;
} plan_key;

typedef struct plan {
    plan_key key;
    int is_usable;
    cublasLtMatmulAlgo_t algo;
} plan;

struct m2_gpu_blas {
    void *library;
#define FIELD(name) __typeof__(&name) name;
    FUNCTIONS(FIELD)
#undef FIELD
    cublasLtHandle_t handle;
    void *workspace;
    int n_plans;
    plan plans[N_PLANS_MAX];
};

typedef struct problem {
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t w, x, y;
} problem;

static cudaDataType_t type_of(m2_dtype dtype)
{
    return dtype == M2_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static int set(const m2_gpu_blas *blas, cublasLtMatmulDescOpaque_t *desc,
               cublasLtMatmulDescAttributes_t what, const void *value, size_t bytes)
{
    return blas->cublasLtMatmulDescSetAttribute(desc, what, value, bytes) == CUBLAS_STATUS_SUCCESS;
}

/* The library is column-major: y^T [out, n] = w [k, out]^T . x^T [k, n]. */
static int describe(const m2_gpu_blas *blas, const m2_gpu_product *p, int64_t n, problem *it)
{
    const cudaDataType_t type = type_of(p->dtype), y_type = type_of(p->y_dtype);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    if (blas->cublasLtMatmulDescInit_internal(&it->desc, sizeof it->desc, CUBLAS_COMPUTE_32F,
                                              CUDA_R_32F) != CUBLAS_STATUS_SUCCESS ||
        !set(blas, &it->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed))
        return 0;
    if (p->bias) {
        const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        const int32_t bias_type = (int32_t)type_of(p->bias_dtype);
        if (!set(blas, &it->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) ||
            !set(blas, &it->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type,
                 sizeof bias_type) ||
            !set(blas, &it->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias))
            return 0;
    }
    const uint64_t k = (uint64_t)p->k, out = (uint64_t)p->out;
    return blas->cublasLtMatrixLayoutInit_internal(&it->w, sizeof it->w, type, k, out, p->k) ==
               CUBLAS_STATUS_SUCCESS &&
           blas->cublasLtMatrixLayoutInit_internal(&it->x, sizeof it->x, type, k, (uint64_t)n,
                                                   p->k) == CUBLAS_STATUS_SUCCESS &&
           blas->cublasLtMatrixLayoutInit_internal(&it->y, sizeof it->y, y_type, out, (uint64_t)n,
                                                   p->out) == CUBLAS_STATUS_SUCCESS;
}

static int splits_k(const m2_gpu_blas *blas, const cublasLtMatmulAlgo_t *algo)
{
    int32_t splits = 1;
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
    size_t written = 0;
    if (blas->cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits,
                                                   sizeof splits,
                                                   &written) != CUBLAS_STATUS_SUCCESS ||
        blas->cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                                   &scheme, sizeof scheme,
                                                   &written) != CUBLAS_STATUS_SUCCESS)
        return 1;
    return splits > 1 || scheme != CUBLASLT_REDUCTION_SCHEME_NONE;
}

/* What a row of y is a multiple of, 16 at most. */
static uint32_t out_align(const m2_gpu_product *p)
{
    const size_t row = (size_t)p->out * m2_dtype_bytes(p->y_dtype);
    uint32_t align = ROW_ALIGN;
    while (row % align != 0) align /= 2;
    return align;
}

/* Rows begin anywhere: the least alignment that a group's first row can have. */
static int prefer(const m2_gpu_blas *blas, const m2_gpu_product *p,
                  cublasLtMatmulPreferenceOpaque_t *preference)
{
    const size_t workspace = WORKSPACE_BYTES;
    const uint32_t x_align = ROW_ALIGN, y_align = out_align(p);
    static const cublasLtMatmulPreferenceAttributes_t inputs[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES
    };
    static const cublasLtMatmulPreferenceAttributes_t outputs[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
    };
    int ok = blas->cublasLtMatmulPreferenceInit_internal(preference, sizeof *preference) ==
                 CUBLAS_STATUS_SUCCESS &&
             blas->cublasLtMatmulPreferenceSetAttribute(
                 preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                 sizeof workspace) == CUBLAS_STATUS_SUCCESS;
    for (int i = 0; i < 2; i++) {
        ok = ok && blas->cublasLtMatmulPreferenceSetAttribute(
                       preference, inputs[i], &x_align, sizeof x_align) == CUBLAS_STATUS_SUCCESS;
        ok = ok && blas->cublasLtMatmulPreferenceSetAttribute(
                       preference, outputs[i], &y_align, sizeof y_align) == CUBLAS_STATUS_SUCCESS;
    }
    return ok;
}

static void choose(const m2_gpu_blas *blas, const m2_gpu_product *p, plan *made)
{
    problem it;
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t results[N_CHOICES];
    int n = 0;
    made->is_usable = 0;
    /* Rows of odd length have no alignment that the matrix units could use. */
    if ((size_t)p->k * m2_dtype_bytes(p->dtype) % ROW_ALIGN != 0) return;
    if (!describe(blas, p, REFERENCE_ROWS, &it) || !prefer(blas, p, &preference)) return;
    if (blas->cublasLtMatmulAlgoGetHeuristic(blas->handle, &it.desc, &it.w, &it.x, &it.y, &it.y,
                                             &preference, N_CHOICES, results,
                                             &n) != CUBLAS_STATUS_SUCCESS)
        return;
    for (int i = 0; i < n; i++) {
        if (results[i].state != CUBLAS_STATUS_SUCCESS || splits_k(blas, &results[i].algo)) continue;
        made->algo = results[i].algo;
        made->is_usable = 1;
        return;
    }
}

static const plan *plan_for(m2_gpu_blas *blas, const m2_gpu_product *p)
{
    plan_key key;
    memset(&key, 0, sizeof key);
    key.k = p->k;
    key.out = p->out;
    key.dtype = p->dtype;
    key.y_dtype = p->y_dtype;
    key.bias_dtype = p->bias ? p->bias_dtype : M2_F32;
    key.has_bias = p->bias != NULL;
    for (int i = 0; i < blas->n_plans; i++)
        if (memcmp(&blas->plans[i].key, &key, sizeof key) == 0) return &blas->plans[i];
    if (blas->n_plans == N_PLANS_MAX) return NULL;
    plan *made = &blas->plans[blas->n_plans++];
    made->key = key;
    choose(blas, p, made);
    m2_debug("gpu", "product k %lld, out %lld: %s", (long long)p->k, (long long)p->out,
             made->is_usable ? "cuBLASLt" : "own kernel");
    return made;
}

/* So are all arrays of arenas, and rows of them. */
static int is_aligned(const m2_gpu_product *p)
{
    return ((uintptr_t)p->x | (uintptr_t)p->w) % ROW_ALIGN == 0 &&
           (uintptr_t)p->y % out_align(p) == 0;
}

int m2_gpu_blas_linear(m2_gpu *gpu, const m2_gpu_product *p)
{
    m2_gpu_blas *blas = gpu->blas;
    const plan *chosen = plan_for(blas, p);
    if (!chosen || !chosen->is_usable || !is_aligned(p)) return 0;
    problem it;
    const float one = 1.0f, zero = 0.0f;
    if (!describe(blas, p, p->n, &it)) return 0;
    const cublasStatus_t status = blas->cublasLtMatmul(
        blas->handle, &it.desc, &one, p->w, &it.w, p->x, &it.x, &zero, p->y, &it.y, p->y, &it.y,
        &chosen->algo, blas->workspace, WORKSPACE_BYTES, gpu->stream);
    if (status == CUBLAS_STATUS_SUCCESS) return 1;
    if (gpu->error == gpuSuccess) {
        gpu->error = cudaErrorUnknown;
        snprintf(gpu->error_text, sizeof gpu->error_text,
                 "linear (cuBLASLt status %d, %lld x %lld x %lld)", (int)status, (long long)p->n,
                 (long long)p->k, (long long)p->out);
        gpu->error_op = gpu->error_text;
    }
    return 1;
}

static int find_functions(m2_gpu_blas *blas)
{
#define FIND(name)                                                                                 \
    *(void **)&blas->name = dlsym(blas->library, #name);                                           \
    if (!blas->name) return 0;
    FUNCTIONS(FIND)
#undef FIND
    return 1;
}

m2_gpu_blas *m2_gpu_blas_open(m2_gpu *gpu, char *text, size_t bytes)
{
    char name[32], path[4096];
    m2_gpu_blas *blas = calloc(1, sizeof *blas);
    if (!blas) return NULL;
    snprintf(name, sizeof name, "libcublasLt.so.%d", CUBLAS_VER_MAJOR);
    blas->library = m2_gpu_library_open(name, path, sizeof path);
    if (!blas->library) {
        snprintf(text, bytes, "no %s (portable products; MAGI2_CUDA_LIBS names folders)", name);
        free(blas);
        return NULL;
    }
    if (!find_functions(blas) || blas->cublasLtCreate(&blas->handle) != CUBLAS_STATUS_SUCCESS ||
        cudaMalloc(&blas->workspace, WORKSPACE_BYTES) != cudaSuccess) {
        cudaGetLastError();
        snprintf(text, bytes, "%s cannot be used (portable products)", path);
        m2_gpu_blas_close(blas);
        return NULL;
    }
    gpu->memory_used += WORKSPACE_BYTES;
    snprintf(text, bytes, "cuBLASLt %zu", blas->cublasLtGetVersion());
    m2_debug("gpu", "%s", path);
    return blas;
}

void m2_gpu_blas_close(m2_gpu_blas *blas)
{
    if (!blas) return;
    if (blas->workspace) cudaFree(blas->workspace);
    if (blas->handle) blas->cublasLtDestroy(blas->handle);
    dlclose(blas->library);
    free(blas);
}
