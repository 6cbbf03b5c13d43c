/* musa_fp16.h - the type and its conversions. */
#ifndef MUSA_FP16_H
#define MUSA_FP16_H

#include "musa_runtime.h"

struct __half {
    unsigned short m2_stub_bits;
};
__device__ __half __float2half_rn(float x);
__device__ float __half2float(__half x);

#endif
