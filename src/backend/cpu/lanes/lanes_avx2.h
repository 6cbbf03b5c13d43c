/* lanes_avx2.h - the words of lanes.h, sixteen lanes in two registers. */
#ifndef M2_BACKEND_CPU_LANES_LANES_AVX2_H
#define M2_BACKEND_CPU_LANES_LANES_AVX2_H

/* Rows and vectors of columns of a product tile: 12 of the 16 registers. */
#define TILE_ROWS    6
#define TILE_VECTORS 1

typedef struct v16 {
    __m256 lo, hi;
} v16;
typedef struct vi16 {
    __m256i lo, hi;
} vi16;
typedef v16 vm16; /* all bits of a lane set or none */

static inline v16 v_set1(float x)
{
    return (v16){ _mm256_set1_ps(x), _mm256_set1_ps(x) };
}
static inline v16 v_zero(void)
{
    return (v16){ _mm256_setzero_ps(), _mm256_setzero_ps() };
}
static inline v16 v_load(const float *p)
{
    return (v16){ _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8) };
}
static inline void v_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
#define TWO(type, name, f)                                                                         \
    static inline type name(type a, type b)                                                        \
    {                                                                                              \
        return (type){ f(a.lo, b.lo), f(a.hi, b.hi) };                                             \
    }
TWO(v16, v_add, _mm256_add_ps)
TWO(v16, v_sub, _mm256_sub_ps)
TWO(v16, v_mul, _mm256_mul_ps)
TWO(v16, v_div, _mm256_div_ps)
TWO(v16, v_max, _mm256_max_ps)
TWO(v16, v_min, _mm256_min_ps)
TWO(vi16, vi_add, _mm256_add_epi32)
TWO(vi16, vi_sub, _mm256_sub_epi32)
TWO(vi16, vi_and, _mm256_and_si256)
TWO(vi16, vi_or, _mm256_or_si256)
TWO(vi16, vi_xor, _mm256_xor_si256)
#undef TWO

static inline v16 v_sqrt(v16 a)
{
    return (v16){ _mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi) };
}
static inline v16 v_fma(v16 a, v16 b, v16 c)
{
    return (v16){ _mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi) };
}
static inline __m256 v_low(v16 a)
{
    return a.lo;
}
static inline __m256 v_high(v16 a)
{
    return a.hi;
}

static inline vi16 v_as_int(v16 a)
{
    return (vi16){ _mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi) };
}
static inline v16 v_as_float(vi16 a)
{
    return (v16){ _mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi) };
}
static inline v16 v_from_int(vi16 a)
{
    return (v16){ _mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi) };
}
static inline vi16 vi_set1(int32_t x)
{
    return (vi16){ _mm256_set1_epi32(x), _mm256_set1_epi32(x) };
}
#define SHIFT(name, f)                                                                             \
    static inline vi16 name(vi16 a, int n)                                                         \
    {                                                                                              \
        return (vi16){ f(a.lo, n), f(a.hi, n) };                                                   \
    }
SHIFT(vi_shl, _mm256_slli_epi32)
SHIFT(vi_shr, _mm256_srli_epi32)
SHIFT(vi_sar, _mm256_srai_epi32)
#undef SHIFT

#define COMPARE(name, how)                                                                         \
    static inline vm16 name(v16 a, v16 b)                                                          \
    {                                                                                              \
        return (vm16){ _mm256_cmp_ps(a.lo, b.lo, how), _mm256_cmp_ps(a.hi, b.hi, how) };           \
    }
COMPARE(vm_less, _CMP_LT_OQ)
COMPARE(vm_equal, _CMP_EQ_OQ)
COMPARE(vm_unordered, _CMP_UNORD_Q)
#undef COMPARE

/* Lanes where a and b share a bit. */
static inline vm16 vm_any_bit(vi16 a, vi16 b)
{
    const vi16 common = vi_and(a, b);
    const __m256i zero = _mm256_setzero_si256(), ones = _mm256_set1_epi32(-1);
    return (
        vm16){ _mm256_castsi256_ps(_mm256_xor_si256(_mm256_cmpeq_epi32(common.lo, zero), ones)),
               _mm256_castsi256_ps(_mm256_xor_si256(_mm256_cmpeq_epi32(common.hi, zero), ones)) };
}
static inline int vm_any(vm16 m)
{
    return (_mm256_movemask_ps(m.lo) | _mm256_movemask_ps(m.hi)) != 0;
}
static inline v16 v_select(vm16 m, v16 yes, v16 no)
{
    return (v16){ _mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi) };
}
static inline vi16 vi_select(vm16 m, vi16 yes, vi16 no)
{
    return v_as_int(v_select(m, v_as_float(yes), v_as_float(no)));
}

static inline v16 v_load_bf16(const m2_bf16 *p)
{
    const __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return v_as_float(
        (vi16){ _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(bits)), 16),
                _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(bits, 1)), 16) });
}

/* The low halves of the sixteen integers, each below 65,536. */
static inline void vi_store_u16(m2_bf16 *p, vi16 a)
{
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(a.lo, a.hi), 0xd8);
    _mm256_storeu_si256((__m256i *)(void *)p, packed);
}

static inline __m256 v_fix_halves(__m256 a)
{
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(a), 0xd8));
}

/* Lanes 0, 2, 4 ... of the 32 values a, b; and lanes 1, 3, 5 ... */
static inline v16 v_evens(v16 a, v16 b)
{
    return (v16){ v_fix_halves(_mm256_shuffle_ps(a.lo, a.hi, 0x88)),
                  v_fix_halves(_mm256_shuffle_ps(b.lo, b.hi, 0x88)) };
}

static inline v16 v_odds(v16 a, v16 b)
{
    return (v16){ v_fix_halves(_mm256_shuffle_ps(a.lo, a.hi, 0xdd)),
                  v_fix_halves(_mm256_shuffle_ps(b.lo, b.hi, 0xdd)) };
}

#endif
