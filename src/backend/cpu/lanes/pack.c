#include "backend/cpu/lanes/tile.h"

static __m256 load8(const void *from, m2_dtype dtype, int64_t i)
{
    if (dtype == M2_F32) return _mm256_loadu_ps((const float *)from + i);
    const __m128i bits =
        _mm_loadu_si128((const __m128i *)(const void *)((const m2_bf16 *)from + i));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

/* Eight outputs by eight k, turned over. */
static void pack_8_by_8(const void *from, m2_dtype dtype, int64_t first, int64_t stride, float *to)
{
    __m256 row[8], pair[8], quad[8];
    LANES_UNROLL for (int i = 0; i < 8; i++) row[i] = load8(from, dtype, first + i * stride);
    LANES_UNROLL for (int i = 0; i < 4; i++)
    {
        pair[2 * i] = _mm256_unpacklo_ps(row[2 * i], row[2 * i + 1]);
        pair[2 * i + 1] = _mm256_unpackhi_ps(row[2 * i], row[2 * i + 1]);
    }
    LANES_UNROLL for (int i = 0; i < 2; i++)
    {
        LANES_UNROLL for (int j = 0; j < 2; j++)
        {
            const __m256 a = pair[4 * i + j], b = pair[4 * i + 2 + j];
            quad[4 * i + 2 * j] = _mm256_shuffle_ps(a, b, 0x44);
            quad[4 * i + 2 * j + 1] = _mm256_shuffle_ps(a, b, 0xee);
        }
    }
    LANES_UNROLL for (int i = 0; i < 4; i++)
    {
        _mm256_storeu_ps(to + i * TILE_COLUMNS, _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * TILE_COLUMNS,
                         _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x31));
    }
}

static float load1(const void *from, m2_dtype dtype, int64_t i)
{
    return dtype == M2_F32 ? ((const float *)from)[i] : m2_bf16_to_f32(((const m2_bf16 *)from)[i]);
}

void M2_LANES_NAME(pack_columns)(const void *from, m2_dtype dtype, int64_t first, int64_t stride,
                                 int64_t n_k, int64_t n_columns, float *to)
{
    for (int64_t column = 0; column < TILE_COLUMNS; column += 8) {
        for (int64_t k = 0; k < TILE_K; k += 8) {
            float *corner = to + k * TILE_COLUMNS + column;
            if (column + 8 <= n_columns && k + 8 <= n_k) {
                pack_8_by_8(from, dtype, first + column * stride + k, stride, corner);
                continue;
            }
            for (int64_t i = 0; i < 8; i++)
                for (int64_t j = 0; j < 8; j++)
                    corner[j * TILE_COLUMNS + i] =
                        column + i < n_columns && k + j < n_k
                            ? load1(from, dtype, first + (column + i) * stride + k + j)
                            : 0.0f;
        }
    }
}

void M2_LANES_NAME(pack_rows)(const void *from, m2_dtype dtype, int64_t first, int64_t stride,
                              int64_t n_k, int64_t n_columns, float *to)
{
    for (int64_t k = 0; k < TILE_K; k++) {
        for (int64_t column = 0; column < TILE_COLUMNS; column += LANES) {
            const int64_t left = k < n_k ? n_columns - column : 0;
            v_store(to + k * TILE_COLUMNS + column,
                    left > 0 ? v_get_n(from, dtype, first + k * stride + column, left) : v_zero());
        }
    }
}

void M2_LANES_NAME(widen)(const void *from, m2_dtype dtype, int64_t first, int64_t n, float *to)
{
    int64_t i = 0;
    if (dtype == M2_F32) {
        i = n / LANES * LANES;
        memcpy(to, (const float *)from + first, (size_t)i * sizeof(float));
    } else {
        const m2_bf16 *x = (const m2_bf16 *)from + first;
        for (; i + 2 * LANES <= n; i += 2 * LANES) {
            v_store(to + i, v_load_bf16(x + i));
            v_store(to + i + LANES, v_load_bf16(x + i + LANES));
        }
    }
    for (; i < n; i += LANES) v_store(to + i, v_get_n(from, dtype, first + i, n - i));
    if (i % TILE_K) v_store(to + i, v_zero());
}
