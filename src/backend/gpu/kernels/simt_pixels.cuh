/* simt_pixels.cuh - moving whole pixels, whatever their type: a pixel is a number of units, the
 * widest that divides it and that memory is aligned to.
 */
#ifndef M2_BACKEND_GPU_KERNELS_SIMT_PIXELS_CUH
#define M2_BACKEND_GPU_KERNELS_SIMT_PIXELS_CUH

#include "backend/gpu/kernels/simt_parts.cuh"
#include "core/dtype.h"

/* Bytes of a unit: 16, or those of one value. */
static inline int simt_pixel_unit(const m2_tensor *x, const m2_tensor *y, int64_t channels)
{
    const size_t value = m2_dtype_bytes(x->dtype);
    const uintptr_t bits = (uintptr_t)x->data | (uintptr_t)y->data;
    return (size_t)channels * value % 16 == 0 && bits % 16 == 0 ? 16 : (int)value;
}

/* Run a statement with UNIT as a type of that many bytes. */
#define SIMT_BY_UNIT(bytes, UNIT, ...)                                                             \
    do {                                                                                           \
        if ((bytes) == 16) {                                                                       \
            using UNIT = uint4;                                                                    \
            __VA_ARGS__;                                                                           \
        } else if ((bytes) == 4) {                                                                 \
            using UNIT = unsigned int;                                                             \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            using UNIT = unsigned short;                                                           \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

#endif
