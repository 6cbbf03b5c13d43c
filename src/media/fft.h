/* fft.h - the discrete Fourier transform of complex doubles, of any length.
 *
 * Lengths of factors 2, 3, 5 and 7 go through a mixed-radix transform (radix 4, 2, 3, 5, 7), all
 * others through Bluestein's algorithm on the next power of two.  Roots of unity are our own sums,
 * not libm's: the same bits on every machine.
 *
 *   forward  y[k] = sum_j x[j] * exp(-2 pi i j k / n)
 *   inverse  the same with +i and without the division by n
 *
 * Threads  a plan is read-only but for its scratch memory: one plan, one thread at a time.
 */
#ifndef M2_MEDIA_FFT_H
#define M2_MEDIA_FFT_H

#include <stdint.h>

#include "core/status.h"

#define M2_FFT_LENGTH_MAX ((int64_t)1 << 26)

typedef struct m2_complex {
    double re, im;
} m2_complex;

typedef struct m2_fft m2_fft;

/* A plan for length `n`, 1 ... M2_FFT_LENGTH_MAX.
 * Errors  M2_ERR_ARG, M2_ERR_MEMORY */
m2_status m2_fft_create(int64_t n, m2_fft **fft_out);
void m2_fft_destroy(m2_fft *fft);

/* In place over x [n]. */
void m2_fft_forward(m2_fft *fft, m2_complex *x);
void m2_fft_inverse(m2_fft *fft, m2_complex *x);

#endif
