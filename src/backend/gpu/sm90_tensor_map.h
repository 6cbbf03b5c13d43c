/* sm90_tensor_map.h - how Hopper's copy engine sees a tensor of bf16.
 *
 * A map names a tensor in device memory and a box of it; one instruction copies a box to shared
 * memory (sm90_load_2d and its kin), zeros where the box reaches past the tensor's edge.  The
 * innermost side of the box fixes the swizzle: 64 values (128 bytes), 32 or 16 swizzle rows of that
 * many bytes as wgmma expects them, any other length lies plain.
 *
 * A map is a kernel argument (__grid_constant__); making one costs the host about a microsecond
 * and is no stream operation, so it may be done while a graph is recorded.
 */
#ifndef M2_BACKEND_GPU_SM90_TENSOR_MAP_H
#define M2_BACKEND_GPU_SM90_TENSOR_MAP_H

#include <cuda.h>
#include <stdint.h>

#define M2_SM90_MAP_DIMS 5

/* A contiguous bf16 tensor of n_dims sides, outermost first (as in m2_tensor), and a box of it in
 * the same order, each side 1 to 256.  `data` is aligned to 16 bytes, as is every row.
 * Gives back 1 with *map_out written, 0 when the driver knows no maps or refuses this one. */
int m2_sm90_map_bf16(CUtensorMap *map_out, const void *data, int n_dims, const int64_t *shape,
                     const int *box);

/* The same for sides that lie any way: strides[i] values from one to the next on side i, the last
 * side's being 1, others multiples of 8. */
int m2_sm90_map_bf16_strided(CUtensorMap *map_out, const void *data, int n_dims,
                             const int64_t *shape, const int64_t *strides, const int *box);

#endif
