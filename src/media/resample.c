#include "media/resample.h"

#include "media/fft.h"

#include <stdlib.h>

int64_t m2_resample_length(int64_t n)
{
    return n / 512 * 441 + n % 512 * 441 / 512;
}

/* Keep the K = min(n, m) lowest bins.  Left and right are the real and imaginary parts of one
 * complex signal, so both halves of the spectrum are kept; where K is even its outermost bin stands
 * for both +K/2 and -K/2: folded together when shortening, shared when lengthening. */
static void resize_spectrum(const m2_complex *x, int64_t n, m2_complex *y, int64_t m)
{
    const int64_t k = n < m ? n : m;
    const double scale = 1.0 / (double)n; /* m / n, and 1 / m of the inverse transform */
    for (int64_t i = 0; i < m; i++) y[i] = (m2_complex){ 0, 0 };
    for (int64_t i = 0; i < (k + 1) / 2; i++) y[i] = x[i];
    for (int64_t i = 1; i < (k + 1) / 2; i++) y[m - i] = x[n - i];
    if (k % 2 == 0) {
        const int64_t half = k / 2;
        if (m == n) {
            y[half] = x[half];
        } else if (m < n) {
            y[half] = (m2_complex){ x[half].re + x[n - half].re, x[half].im + x[n - half].im };
        } else {
            y[half] = (m2_complex){ 0.5 * x[half].re, 0.5 * x[half].im };
            y[m - half] = y[half];
        }
    }
    for (int64_t i = 0; i < m; i++) y[i] = (m2_complex){ y[i].re * scale, y[i].im * scale };
}

m2_status m2_resample_stereo(const float *in, int64_t n, float *out, int64_t m)
{
    if (n < 1 || m < 1)
        return m2_fail(M2_ERR_ARG, "resampling %lld samples to %lld: both must be at least 1",
                       (long long)n, (long long)m);
    m2_fft *forward = NULL, *inverse = NULL;
    m2_complex *x = NULL, *y = NULL;
    m2_status status = m2_fft_create(n, &forward);
    if (status == M2_OK) status = m2_fft_create(m, &inverse);
    if (status != M2_OK) goto done;
    x = malloc((size_t)n * sizeof *x);
    y = malloc((size_t)m * sizeof *y);
    if (!x || !y) {
        status = m2_fail(M2_ERR_MEMORY, "no memory to resample %lld samples", (long long)n);
        goto done;
    }
    for (int64_t i = 0; i < n; i++) x[i] = (m2_complex){ in[2 * i], in[2 * i + 1] };
    m2_fft_forward(forward, x);
    resize_spectrum(x, n, y, m);
    m2_fft_inverse(inverse, y);
    for (int64_t i = 0; i < m; i++) {
        out[2 * i] = (float)y[i].re;
        out[2 * i + 1] = (float)y[i].im;
    }
done:
    m2_fft_destroy(forward);
    m2_fft_destroy(inverse);
    free(x);
    free(y);
    return status;
}
