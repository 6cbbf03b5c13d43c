/* lanes.h - sixteen f32 at a time: the vocabulary that the fast operators are written in.
 *
 * Every source of this folder is compiled once for each instruction set: with AVX-512 the sixteen
 * lanes are one register, with AVX2 two.  Each word is one IEEE operation on every lane, so an
 * operator that follows the order of its scalar twin in cpu/ref gives the same bits.
 *
 * Names     v_ for floats, vi_ for the 32-bit integers behind them, vm_ for masks.
 * Maximum   v_max(a, b) is a > b ? a : b, lane by lane: b where one is NaN.
 */
#ifndef M2_BACKEND_CPU_LANES_LANES_H
#define M2_BACKEND_CPU_LANES_LANES_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "core/dtype.h"

#define LANES 16

#if defined(__clang__)
#define LANES_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LANES_UNROLL _Pragma("GCC unroll 32")
#endif

#if defined(M2_LANES_avx512)
#define M2_LANES_NAME(name) m2_avx512_##name
#include "backend/cpu/lanes/lanes_avx512.h"
#else
#define M2_LANES_NAME(name) m2_avx2_##name
#include "backend/cpu/lanes/lanes_avx2.h"
#endif

/* Sum in the fixed tree: l += l + 8, l + 4, l + 2, l + 1. */
static inline float v_tree_sum(v16 a)
{
    const __m256 t8 = _mm256_add_ps(v_low(a), v_high(a));
    const __m128 t4 = _mm_add_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
    const __m128 t2 = _mm_add_ps(t4, _mm_movehl_ps(t4, t4));
    return _mm_cvtss_f32(_mm_add_ss(t2, _mm_movehdup_ps(t2)));
}

/* The maximum in the same tree, each step v_max(lane, lane + step). */
static inline float v_tree_max(v16 a)
{
    const __m256 t8 = _mm256_max_ps(v_low(a), v_high(a));
    const __m128 t4 = _mm_max_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
    const __m128 t2 = _mm_max_ps(t4, _mm_movehl_ps(t4, t4));
    return _mm_cvtss_f32(_mm_max_ss(t2, _mm_movehdup_ps(t2)));
}

/* Rounded to bf16, to nearest and ties to even; a NaN stays one. */
static inline vi16 v_bf16_bits(v16 a)
{
    const vi16 bits = v_as_int(a);
    const vi16 odd = vi_and(vi_shr(bits, 16), vi_set1(1));
    const vi16 rounded = vi_shr(vi_add(vi_add(bits, vi_set1(0x7fff)), odd), 16);
    const vi16 quiet = vi_or(vi_shr(bits, 16), vi_set1(0x40));
    return vi_select(vm_unordered(a, a), quiet, rounded);
}

static inline v16 v_round_bf16(v16 a)
{
    return v_as_float(vi_shl(v_bf16_bits(a), 16));
}

static inline void v_store_bf16(m2_bf16 *to, v16 a)
{
    vi_store_u16(to, v_bf16_bits(a));
}

/* The first n <= 16 elements, zeros behind them. */
static inline v16 v_load_bf16_n(const m2_bf16 *from, int64_t n)
{
    m2_bf16 part[LANES] = { { 0 } };
    memcpy(part, from, (size_t)n * sizeof *part);
    return v_load_bf16(part);
}

static inline void v_store_bf16_n(m2_bf16 *to, v16 a, int64_t n)
{
    m2_bf16 part[LANES];
    v_store_bf16(part, a);
    memcpy(to, part, (size_t)n * sizeof *part);
}

static inline v16 v_load_n(const float *from, int64_t n)
{
    float part[LANES] = { 0 };
    memcpy(part, from, (size_t)n * sizeof *part);
    return v_load(part);
}

static inline void v_store_n(float *to, v16 a, int64_t n)
{
    float part[LANES];
    v_store(part, a);
    memcpy(to, part, (size_t)n * sizeof *part);
}

/* The same for memory of either type, from element i on. */
static inline v16 v_get(const void *data, m2_dtype dtype, int64_t i)
{
    return dtype == M2_BF16 ? v_load_bf16((const m2_bf16 *)data + i)
                            : v_load((const float *)data + i);
}

static inline v16 v_get_n(const void *data, m2_dtype dtype, int64_t i, int64_t n)
{
    if (n >= LANES) return v_get(data, dtype, i);
    return dtype == M2_BF16 ? v_load_bf16_n((const m2_bf16 *)data + i, n)
                            : v_load_n((const float *)data + i, n);
}

static inline void v_put(void *data, m2_dtype dtype, int64_t i, v16 a)
{
    if (dtype == M2_BF16)
        v_store_bf16((m2_bf16 *)data + i, a);
    else
        v_store((float *)data + i, a);
}

static inline void v_put_n(void *data, m2_dtype dtype, int64_t i, v16 a, int64_t n)
{
    if (n >= LANES)
        v_put(data, dtype, i, a);
    else if (dtype == M2_BF16)
        v_store_bf16_n((m2_bf16 *)data + i, a, n);
    else
        v_store_n((float *)data + i, a, n);
}

#endif
