/* mma.h - 16x16x16 tiles of bf16 into f32, the one shape that every MUSA card has. */
#ifndef MUSA_MMA_H
#define MUSA_MMA_H

#include "musa_bf16.h"

namespace mtmusa
{
namespace wmma
{
struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
template <typename Use, int M, int N, int K, typename T, typename Layout = void> struct fragment {
    static_assert(M == 16 && N == 16 && K == 16, "the one shape of every card");
    T x[8];
    enum { num_elements = 8 };
};
template <typename Fragment, typename T> __device__ void fill_fragment(Fragment &to, T value);
template <typename Fragment, typename T>
__device__ void load_matrix_sync(Fragment &to, const T *from, unsigned stride);
template <typename Fragment, typename T>
__device__ void load_matrix_sync(Fragment &to, const T *from, unsigned stride, layout_t layout);
template <typename T, typename Fragment>
__device__ void store_matrix_sync(T *to, const Fragment &from, unsigned stride, layout_t layout);
template <typename LayoutA, typename LayoutB>
__device__ void mma_sync(fragment<accumulator, 16, 16, 16, float> &d,
                         const fragment<matrix_a, 16, 16, 16, __mt_bfloat16, LayoutA> &a,
                         const fragment<matrix_b, 16, 16, 16, __mt_bfloat16, LayoutB> &b,
                         const fragment<accumulator, 16, 16, 16, float> &c);
} // namespace wmma
} // namespace mtmusa

#endif
