/* simt_conv_tile.cuh - convolution as a matrix product: which samples a tile reads, and its way to
 * shared memory.
 *
 * Rows of the product are output samples, columns output channels; K runs over the taps and, inside
 * a tap, over the channels in stages of 64 bytes (16 f32 or 32 bf16), zeros past the last channel.
 * A tile has 128 rows and 64 or 128 columns and is the work of 256 threads: four neighbours bring
 * one row of a stage, 16 bytes each.
 */
#ifndef M2_BACKEND_GPU_KERNELS_SIMT_CONV_TILE_CUH
#define M2_BACKEND_GPU_KERNELS_SIMT_CONV_TILE_CUH

#include "backend/gpu/kernels/simt_parts.cuh"

#define CONV_ROWS    128
#define CONV_COLUMNS 64 /* and twice as many where UNITS is 2 */
#define CONV_THREADS 256

/* Values of T in 16 bytes, and in a stage of K. */
#define CONV_PACK(T)  (16 / (int)sizeof(T))
#define CONV_STAGE(T) (4 * CONV_PACK(T))

/* Where K stands: a tap and a channel in it. */
typedef struct conv_at {
    int tap, dt, dy, dx, channel;
} conv_at;

/* Rows of an ordinary convolution: samples (t, y, x). */
typedef struct conv_rows {
    int frames, height, width;
    int kt, kh, kw, dilation, pad_left;
    int n_taps;
    int64_t n_rows;

    struct place {
        int t, y, x;
    };

    /* There is one phase. */
    __device__ __forceinline__ void select(int)
    {
    }

    __device__ __forceinline__ place place_of(int64_t row) const
    {
        const int64_t line = row / width;
        place at;
        at.x = (int)(row - line * width);
        at.t = (int)(line / height);
        at.y = (int)(line - (int64_t)at.t * height);
        return at;
    }
    /* The sample that `tap` of this row reads, or -1 outside. */
    __device__ __forceinline__ int64_t sample(const place &at, const conv_at &k) const
    {
        const int ft = at.t + k.dt - kt / 2, y = at.y + k.dy - kh / 2;
        const int x = at.x + k.dx * dilation - pad_left;
        const int t = ft < 0 ? 0 : ft >= frames ? frames - 1 : ft;
        const bool is_inside = y >= 0 && y < height && x >= 0 && x < width;
        return is_inside ? ((int64_t)t * height + y) * width + x : -1;
    }
    __device__ __forceinline__ int weight_tap(int tap) const
    {
        return tap;
    }
    __device__ __forceinline__ int64_t output(int64_t row) const
    {
        return row;
    }
} conv_rows;

/* Rows of one phase of a transposed convolution: outputs j * stride + phase - pad, which the inputs
 * j and j - 1 reach by the taps phase and phase + stride.  A phase is one y of the grid. */
typedef struct conv_phase_rows {
    int length, stride, n_outputs;
    int kh, kw;       /* 1, 2                  */
    int n_taps;       /* 2                     */
    int phase, first; /* first: j of row 0     */
    int64_t n_rows;   /* at first of any phase */

    struct place {
        int j;
    };

    /* The j that give 0 <= output < n_outputs. */
    __device__ __forceinline__ void select(int selected)
    {
        const int pad = (stride + 1) / 2, last = n_outputs - 1 + pad - selected;
        phase = selected;
        first = selected < pad ? 1 : 0;
        n_rows = last < 0 ? 0 : last / stride + 1 - first;
    }

    __device__ __forceinline__ place place_of(int64_t row) const
    {
        place at;
        at.j = first + (int)row;
        return at;
    }
    __device__ __forceinline__ int64_t sample(const place &at, const conv_at &k) const
    {
        const int from = at.j - k.tap;
        return from >= 0 && from < length ? from : -1;
    }
    __device__ __forceinline__ int weight_tap(int tap) const
    {
        return phase + tap * stride;
    }
    __device__ __forceinline__ int64_t output(int64_t row) const
    {
        return (first + row) * stride + phase - (stride + 1) / 2;
    }
} conv_phase_rows;

template <typename T> struct conv_data {
    const T *x, *w;
    simt_any bias;
    T *y;
    int c_in, c_out;
};

/* K's next stage; past the last tap `tap` is n_taps. */
template <typename T, typename ROWS>
static __device__ __forceinline__ void conv_next(conv_at *at, const ROWS &rows, int c_in)
{
    at->channel += CONV_STAGE(T);
    if (at->channel < c_in) return;
    at->channel = 0;
    at->tap++;
    if (++at->dx < rows.kw) return;
    at->dx = 0;
    if (++at->dy < rows.kh) return;
    at->dy = 0;
    at->dt++;
}

/* 16 bytes from `channel` of one sample or weight row on, zeros outside. */
template <int IS_WIDE, typename T>
static __device__ __forceinline__ uint4 conv_fetch(const T *from, int channel, int c_in,
                                                   bool is_inside)
{
    uint4 raw = make_uint4(0, 0, 0, 0);
    if (IS_WIDE) {
        if (is_inside && channel < c_in) raw = *(const uint4 *)(from + channel);
    } else {
        union {
            T values[16 / sizeof(T)];
            uint4 raw;
        } pack;
#pragma unroll
        for (int i = 0; i < CONV_PACK(T); i++)
            simt_put(pack.values, i,
                     is_inside && channel + i < c_in ? simt_get(from, channel + i) : 0.0f);
        raw = pack.raw;
    }
    return raw;
}

/* One thread's share of a stage, on its way to shared memory: rows r and r + 64 of the samples and
 * of the weights, r = thread / 4. */
template <int UNITS> struct conv_share {
    uint4 a[2], b[UNITS];
};

template <int IS_WIDE, int UNITS, typename T, typename ROWS>
static __device__ __forceinline__ void
conv_share_load(conv_share<UNITS> *share, const ROWS &rows, const conv_data<T> &data,
                const typename ROWS::place (&places)[2], const bool (&is_row)[2], int column,
                const conv_at &at)
{
    const int channel = at.channel + (int)threadIdx.x % 4 * CONV_PACK(T);
    const bool is_tap = at.tap < rows.n_taps;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int64_t sample = is_tap && is_row[i] ? rows.sample(places[i], at) : -1;
        share->a[i] = conv_fetch<IS_WIDE>(data.x + (sample < 0 ? 0 : sample) * data.c_in, channel,
                                          data.c_in, sample >= 0);
    }
#pragma unroll
    for (int i = 0; i < UNITS; i++) {
        const int o = column + i * 64;
        const bool is_weight = is_tap && o < data.c_out;
        const int64_t row = is_weight ? (int64_t)rows.weight_tap(at.tap) * data.c_out + o : 0;
        share->b[i] = conv_fetch<IS_WIDE>(data.w + row * data.c_in, channel, data.c_in, is_weight);
    }
}

/* Tiles of 128 columns where c_out fills them. */
static inline int conv_units(int64_t c_out)
{
    return c_out % (2 * CONV_COLUMNS) == 0 ? 2 : 1;
}

/* Blocks in one line: the column tiles of the same rows stand together, as they read the same
 * samples. */
static inline unsigned int conv_blocks(int64_t n_rows, int64_t c_out, int units)
{
    return simt_blocks(n_rows, CONV_ROWS) * simt_blocks(c_out, CONV_COLUMNS * units);
}

#endif
