/* simt_split_time.cu - frame 2 t + s takes channels s * C ... of frame t.  A block takes one row of
 * the output.
 *
 * Twin     backend/cpu/ref/split_time.c */
#include "backend/gpu/kernels/simt_pixels.cuh"

template <typename UNIT>
static __global__ void split_time_kernel(const UNIT *x, UNIT *y, int height, int width, int n_units,
                                         int n_drop)
{
    const int row = (int)blockIdx.x, frame = row / height + n_drop;
    const int64_t from_row = (int64_t)(frame / 2) * height + row % height;
    const UNIT *from = x + from_row * width * 2 * n_units + frame % 2 * n_units;
    UNIT *to = y + (int64_t)row * width * n_units;
    for (int px = (int)threadIdx.y; px < width; px += (int)blockDim.y)
        for (int u = (int)threadIdx.x; u < n_units; u += (int)blockDim.x)
            to[px * n_units + u] = from[px * 2 * n_units + u];
}

extern "C" void m2_gpu_split_time(const m2_ops *ops, const m2_split_time_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t *shape = args->y->shape;
    if (m2_tensor_count(args->y) == 0) return;
    const int unit = simt_pixel_unit(args->x, args->y, shape[3]);
    const int n_units = (int)(shape[3] * (int64_t)m2_dtype_bytes(args->x->dtype) / unit);
    SIMT_BY_UNIT(unit, UNIT, {
        split_time_kernel<UNIT>
            <<<(unsigned int)(shape[0] * shape[1]), simt_parts_block(n_units), 0, gpu->stream>>>(
                (const UNIT *)args->x->data, (UNIT *)args->y->data, (int)shape[1], (int)shape[2],
                n_units, args->n_drop);
    });
    m2_gpu_launched(gpu, "split_time");
}
