/* sm90_tensor_map.cu - tensor maps by the driver's encoder, found at run time.
 *
 * The encoder lives in the driver's library.  Asking the runtime for it keeps that library out of
 * the link, so the program starts, and says what is missing, on machines without a driver.
 */
#include <cuda_runtime.h>

#include "backend/gpu/sm90_tensor_map.h"

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static encode_fn find_encoder(void)
{
    void *entry = NULL;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                                               12000, cudaEnableDefault, &found);
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return NULL;
    return (encode_fn)entry;
}

static CUtensorMapSwizzle swizzle_of(int row_values)
{
    if (row_values == 64) return CU_TENSOR_MAP_SWIZZLE_128B;
    if (row_values == 32) return CU_TENSOR_MAP_SWIZZLE_64B;
    if (row_values == 16) return CU_TENSOR_MAP_SWIZZLE_32B;
    return CU_TENSOR_MAP_SWIZZLE_NONE;
}

int m2_sm90_map_bf16_strided(CUtensorMap *map_out, const void *data, int n_dims,
                             const int64_t *shape, const int64_t *strides, const int *box)
{
    static encode_fn encoder; /* the same for every device and thread, so a race is harmless */
    if (!encoder) encoder = find_encoder();
    if (!encoder || n_dims < 2 || n_dims > M2_SM90_MAP_DIMS) return 0;

    cuuint64_t sides[M2_SM90_MAP_DIMS], outer[M2_SM90_MAP_DIMS];
    cuuint32_t box_sides[M2_SM90_MAP_DIMS], steps[M2_SM90_MAP_DIMS];
    for (int i = 0; i < n_dims; i++) { /* the driver counts from the innermost side */
        sides[i] = (cuuint64_t)shape[n_dims - 1 - i];
        box_sides[i] = (cuuint32_t)box[n_dims - 1 - i];
        steps[i] = 1;
        if (i > 0) outer[i - 1] = (cuuint64_t)strides[n_dims - 1 - i] * sizeof(uint16_t);
    }
    return encoder(map_out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, (cuuint32_t)n_dims, (void *)data,
                   sides, outer, box_sides, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                   swizzle_of(box[n_dims - 1]), CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

int m2_sm90_map_bf16(CUtensorMap *map_out, const void *data, int n_dims, const int64_t *shape,
                     const int *box)
{
    int64_t strides[M2_SM90_MAP_DIMS], values = 1;
    if (n_dims > M2_SM90_MAP_DIMS) return 0;
    for (int i = n_dims - 1; i >= 0; i--) {
        strides[i] = values;
        values *= shape[i];
    }
    return m2_sm90_map_bf16_strided(map_out, data, n_dims, shape, strides, box);
}
