/* simt_conv_depthwise.cu - depthwise convolution: taps (t, y, x) in order as one chain of FMAs.  A
 * block takes one row of the output, x runs over the channels.
 *
 * Twin     backend/cpu/ref/conv_depthwise.c */
#include "backend/gpu/kernels/simt_parts.cuh"

typedef struct depthwise_shape {
    int frames, height, width, channels, kernel[3];
} depthwise_shape;

template <typename T>
static __device__ float depthwise_value(const T *x, const T *w, depthwise_shape shape, int t, int y,
                                        int px, int c)
{
    const int kt = shape.kernel[0], kh = shape.kernel[1], kw = shape.kernel[2];
    float sum = 0.0f;
    for (int dt = 0; dt < kt; dt++) {
        const int ft = t + dt - kt / 2;
        const int frame = ft < 0 ? 0 : ft >= shape.frames ? shape.frames - 1 : ft;
        for (int dy = 0; dy < kh; dy++) {
            const int row = y + dy - kh / 2;
            for (int dx = 0; dx < kw; dx++) {
                const int column = px + dx - kw / 2;
                const int tap = (dt * kh + dy) * kw + dx;
                const int64_t sample = ((int64_t)frame * shape.height + row) * shape.width + column;
                if (row >= 0 && row < shape.height && column >= 0 && column < shape.width)
                    sum = fmaf(simt_get(x, sample * shape.channels + c),
                               simt_get(w, (int64_t)tap * shape.channels + c), sum);
            }
        }
    }
    return sum;
}

template <typename T>
static __global__ void depthwise_kernel(const T *x, const T *w, simt_any bias, T *y,
                                        depthwise_shape shape)
{
    const int row = (int)blockIdx.x;
    for (int px = (int)threadIdx.y; px < shape.width; px += (int)blockDim.y) {
        for (int c = (int)threadIdx.x; c < shape.channels; c += (int)blockDim.x) {
            float value =
                depthwise_value(x, w, shape, row / shape.height, row % shape.height, px, c);
            if (bias.data) value = __fadd_rn(value, simt_any_get(bias, c));
            simt_put(y, ((int64_t)row * shape.width + px) * shape.channels + c, value);
        }
    }
}

extern "C" void m2_gpu_conv_depthwise(const m2_ops *ops, const m2_conv_depthwise_args *args)
{
    struct m2_gpu *gpu = m2_gpu_of(ops);
    const int64_t *from = args->x->shape;
    if (m2_tensor_count(args->x) == 0) return;
    const depthwise_shape shape = { (int)from[0],
                                    (int)from[1],
                                    (int)from[2],
                                    (int)from[3],
                                    { args->kernel[0], args->kernel[1], args->kernel[2] } };
    SIMT_BY_TYPE(args->x->dtype, T, {
        depthwise_kernel<T>
            <<<(unsigned int)(from[0] * from[1]), simt_parts_block(from[3]), 0, gpu->stream>>>(
                (const T *)args->x->data, (const T *)args->w->data, simt_any_of(args->bias),
                (T *)args->y->data, shape);
    });
    m2_gpu_launched(gpu, "conv_depthwise");
}
