/* musa_bf16.h - the type without arithmetic: a bf16 sum that does not go through f32 does not compile. */
#ifndef MUSA_BF16_H
#define MUSA_BF16_H

#include "musa_runtime.h"

struct __mt_bfloat16 {
    unsigned short m2_stub_bits;
};
struct __mt_bfloat162 {
    __mt_bfloat16 x, y;
};
__device__ __mt_bfloat16 __float2bfloat16_rn(float x);
__device__ float __bfloat162float(__mt_bfloat16 x);
__device__ __mt_bfloat162 __float22bfloat162_rn(float2 x);
__device__ float2 __bfloat1622float2(__mt_bfloat162 x);

#endif
