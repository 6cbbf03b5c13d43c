/* lanes_avx512.h - the words of lanes.h, sixteen lanes in one register. */
#ifndef M2_BACKEND_CPU_LANES_LANES_AVX512_H
#define M2_BACKEND_CPU_LANES_LANES_AVX512_H

/* Rows and vectors of columns of a product tile: 24 of the 32 registers. */
#define TILE_ROWS    12
#define TILE_VECTORS 2

typedef __m512 v16;
typedef __m512i vi16;
typedef __mmask16 vm16;

static inline v16 v_set1(float x)
{
    return _mm512_set1_ps(x);
}
static inline v16 v_zero(void)
{
    return _mm512_setzero_ps();
}
static inline v16 v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
static inline void v_store(float *p, v16 a)
{
    _mm512_storeu_ps(p, a);
}
static inline v16 v_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}
static inline v16 v_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}
static inline v16 v_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}
static inline v16 v_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}
static inline v16 v_sqrt(v16 a)
{
    return _mm512_sqrt_ps(a);
}
static inline v16 v_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}
static inline v16 v_min(v16 a, v16 b)
{
    return _mm512_min_ps(a, b);
}
static inline v16 v_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}
static inline __m256 v_low(v16 a)
{
    return _mm512_castps512_ps256(a);
}
static inline __m256 v_high(v16 a)
{
    return _mm512_extractf32x8_ps(a, 1);
}

static inline vi16 v_as_int(v16 a)
{
    return _mm512_castps_si512(a);
}
static inline v16 v_as_float(vi16 a)
{
    return _mm512_castsi512_ps(a);
}
static inline v16 v_from_int(vi16 a)
{
    return _mm512_cvtepi32_ps(a);
}
static inline vi16 vi_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}
static inline vi16 vi_add(vi16 a, vi16 b)
{
    return _mm512_add_epi32(a, b);
}
static inline vi16 vi_sub(vi16 a, vi16 b)
{
    return _mm512_sub_epi32(a, b);
}
static inline vi16 vi_and(vi16 a, vi16 b)
{
    return _mm512_and_si512(a, b);
}
static inline vi16 vi_or(vi16 a, vi16 b)
{
    return _mm512_or_si512(a, b);
}
static inline vi16 vi_xor(vi16 a, vi16 b)
{
    return _mm512_xor_si512(a, b);
}
#define vi_shl(a, n) _mm512_slli_epi32((a), (n))
#define vi_shr(a, n) _mm512_srli_epi32((a), (n))
#define vi_sar(a, n) _mm512_srai_epi32((a), (n))

static inline vm16 vm_less(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
static inline vm16 vm_equal(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
static inline vm16 vm_unordered(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
}
static inline vm16 vm_any_bit(vi16 a, vi16 b)
{
    return _mm512_test_epi32_mask(a, b);
}
static inline int vm_any(vm16 m)
{
    return m != 0;
}
static inline v16 v_select(vm16 m, v16 yes, v16 no)
{
    return _mm512_mask_blend_ps(m, no, yes);
}
static inline vi16 vi_select(vm16 m, vi16 yes, vi16 no)
{
    return _mm512_mask_blend_epi32(m, no, yes);
}

static inline v16 v_load_bf16(const m2_bf16 *p)
{
    const __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return v_as_float(vi_shl(_mm512_cvtepu16_epi32(bits), 16));
}

/* The low halves of the sixteen integers. */
static inline void vi_store_u16(m2_bf16 *p, vi16 a)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(a));
}

/* Lanes 0, 2, 4 ... of the 32 values a, b; and lanes 1, 3, 5 ... */
static inline v16 v_evens(v16 a, v16 b)
{
    const vi16 idx = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_ps(a, idx, b);
}

static inline v16 v_odds(v16 a, v16 b)
{
    const vi16 idx = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return _mm512_permutex2var_ps(a, idx, b);
}

#endif
