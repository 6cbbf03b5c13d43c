/* simt_upsample_nearest.cu - every sample fh times in H and fw times in W.  A block takes one row
 * of the input: each unit is read once and written fh * fw times.
 *
 * Twin     backend/cpu/ref/upsample_nearest.c */
#include "backend/gpu/kernels/simt_pixels.cuh"

template <typename UNIT>
static __global__ void upsample_kernel(const UNIT *x, UNIT *y, int width, int n_units, int fh,
                                       int fw)
{
    const int64_t row = blockIdx.x; /* of all frames: they follow each other */
    const UNIT *from = x + row * width * n_units;
    UNIT *to = y + row * fh * width * fw * n_units;
    for (int px = (int)threadIdx.y; px < width; px += (int)blockDim.y) {
        for (int u = (int)threadIdx.x; u < n_units; u += (int)blockDim.x) {
            const UNIT value = from[px * n_units + u];
            for (int i = 0; i < fh; i++)
                for (int j = 0; j < fw; j++)
                    to[((int64_t)(i * width + px) * fw + j) * n_units + u] = value;
        }
    }
}

extern "C" void m2_gpu_upsample_nearest(const m2_ops *ops, const m2_upsample_nearest_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t *shape = args->x->shape;
    if (m2_tensor_count(args->x) == 0) return;
    const int unit = simt_pixel_unit(args->x, args->y, shape[3]);
    const int n_units = (int)(shape[3] * (int64_t)m2_dtype_bytes(args->x->dtype) / unit);
    SIMT_BY_UNIT(unit, UNIT, {
        upsample_kernel<UNIT>
            <<<(unsigned int)(shape[0] * shape[1]), simt_parts_block(n_units), 0, gpu->stream>>>(
                (const UNIT *)args->x->data, (UNIT *)args->y->data, (int)shape[2], n_units,
                args->fh, args->fw);
    });
    m2_gpu_launched(gpu, "upsample_nearest");
}
