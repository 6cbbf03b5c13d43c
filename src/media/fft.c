#include "media/fft.h"

#include "core/dmath.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define FACTORS_MAX 32 /* log2 of the largest length, and some */
#define RADIX_MAX   7

struct m2_fft {
    int64_t n;
    /* Mixed radix, of length n, or of the convolution of Bluestein. */
    int64_t n_direct;
    int n_factors;
    int factors[FACTORS_MAX];
    m2_complex *roots;   /* [n_direct]: exp(-2 pi i k / n_direct) */
    m2_complex *scratch; /* [n_direct]                            */
    /* Bluestein: NULL otherwise. */
    m2_complex *chirp;  /* [n]: exp(-pi i k^2 / n)                                     */
    m2_complex *filter; /* [n_direct]: transform of the conjugate chirp, over n_direct */
    m2_complex *work;   /* [n_direct]                                                  */
};

/* exp(-2 pi i k / n), 0 <= k < n.  The angle is brought into [0, pi/4] with whole numbers, so the
 * roots are as exact for a large k as for a small one. */
static m2_complex unit_root(int64_t k, int64_t n)
{
    const double two_pi = 6.283185307179586476925286766559;
    const int64_t eighths = 8 * k / n;  /* octant, 0 ... 7                */
    int64_t rest = 8 * k - eighths * n; /* inside of it, in units of 1/8n */
    if (eighths & 1) rest = n - rest;   /* odd octants are mirrored       */
    const double angle = two_pi * ((double)rest / (8.0 * (double)n));
    const double c = m2_cos64(angle), s = m2_sin64(angle);
    switch (eighths) {
    case 0:
        return (m2_complex){ c, -s };
    case 1:
        return (m2_complex){ s, -c };
    case 2:
        return (m2_complex){ -s, -c };
    case 3:
        return (m2_complex){ -c, -s };
    case 4:
        return (m2_complex){ -c, s };
    case 5:
        return (m2_complex){ -s, c };
    case 6:
        return (m2_complex){ s, c };
    default:
        return (m2_complex){ c, s };
    }
}

static m2_complex multiply(m2_complex a, m2_complex b)
{
    return (m2_complex){ a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re };
}

/* Gives what is left of n once 2, 3, 5 and 7 are divided out. */
static int64_t factorise(int64_t n, int *factors, int *n_factors_out)
{
    static const int radices[] = { 4, 2, 3, 5, 7 };
    int n_factors = 0;
    for (size_t i = 0; i < sizeof radices / sizeof radices[0]; i++) {
        while (n % radices[i] == 0) {
            factors[n_factors++] = radices[i];
            n /= radices[i];
        }
    }
    *n_factors_out = n_factors;
    return n;
}

static void transform_2(const m2_complex *a, m2_complex *b)
{
    b[0] = (m2_complex){ a[0].re + a[1].re, a[0].im + a[1].im };
    b[1] = (m2_complex){ a[0].re - a[1].re, a[0].im - a[1].im };
}

static void transform_4(const m2_complex *a, m2_complex *b)
{
    const m2_complex s02 = { a[0].re + a[2].re, a[0].im + a[2].im };
    const m2_complex d02 = { a[0].re - a[2].re, a[0].im - a[2].im };
    const m2_complex s13 = { a[1].re + a[3].re, a[1].im + a[3].im };
    const m2_complex d13 = { a[1].re - a[3].re, a[1].im - a[3].im };
    b[0] = (m2_complex){ s02.re + s13.re, s02.im + s13.im };
    b[1] = (m2_complex){ d02.re + d13.im, d02.im - d13.re };
    b[2] = (m2_complex){ s02.re - s13.re, s02.im - s13.im };
    b[3] = (m2_complex){ d02.re - d13.im, d02.im + d13.re };
}

/* Odd radix: inputs j and r - j meet the same cosine and opposite sines. `roots` [r]. */
static void transform_odd(int r, const m2_complex *roots, const m2_complex *a, m2_complex *b)
{
    const int half = (r - 1) / 2;
    m2_complex sum[RADIX_MAX / 2], difference[RADIX_MAX / 2];
    b[0] = a[0];
    for (int j = 0; j < half; j++) {
        const m2_complex p = a[j + 1], q = a[r - 1 - j];
        sum[j] = (m2_complex){ p.re + q.re, p.im + q.im };
        difference[j] = (m2_complex){ p.re - q.re, p.im - q.im };
        b[0].re += sum[j].re;
        b[0].im += sum[j].im;
    }
    for (int k = 1; k <= half; k++) {
        m2_complex even = a[0], odd = { 0, 0 };
        for (int j = 0; j < half; j++) {
            const m2_complex root = roots[(j + 1) * k % r];
            even.re += root.re * sum[j].re;
            even.im += root.re * sum[j].im;
            odd.re -= root.im * difference[j].im;
            odd.im += root.im * difference[j].re;
        }
        b[k] = (m2_complex){ even.re + odd.re, even.im + odd.im };
        b[r - k] = (m2_complex){ even.re - odd.re, even.im - odd.im };
    }
}

/* One Stockham pass: `n` is the length still to split, `stride` the product of earlier radices. */
static void pass(const m2_fft *fft, int r, int64_t n, int64_t stride, const m2_complex *x,
                 m2_complex *y)
{
    assert(r >= 2 && r <= RADIX_MAX);
    const int64_t m = n / r;
    m2_complex small_roots[RADIX_MAX];
    for (int k = 0; k < r; k++) small_roots[k] = unit_root(k, r);
    for (int64_t p = 0; p < m; p++) {
        m2_complex twiddles[RADIX_MAX];
        for (int k = 0; k < r; k++) twiddles[k] = fft->roots[p * k * stride];
        for (int64_t q = 0; q < stride; q++) {
            m2_complex a[RADIX_MAX], b[RADIX_MAX];
            for (int j = 0; j < r; j++) a[j] = x[q + stride * (p + m * j)];
            if (r == 4)
                transform_4(a, b);
            else if (r == 2)
                transform_2(a, b);
            else
                transform_odd(r, small_roots, a, b);
            m2_complex *to = y + q + stride * r * p;
            to[0] = b[0];
            for (int k = 1; k < r; k++) to[stride * k] = multiply(b[k], twiddles[k]);
        }
    }
}

static void transform_direct(m2_fft *fft, m2_complex *x)
{
    m2_complex *from = x, *to = fft->scratch;
    int64_t n = fft->n_direct, stride = 1;
    for (int i = 0; i < fft->n_factors; i++) {
        const int r = fft->factors[i];
        pass(fft, r, n, stride, from, to);
        n /= r;
        stride *= r;
        m2_complex *swap = from;
        from = to;
        to = swap;
    }
    if (from != x) memcpy(x, from, (size_t)fft->n_direct * sizeof *x);
}

static void conjugate(m2_complex *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i].im = -x[i].im;
}

/* jk = (j^2 + k^2 - (j - k)^2) / 2 turns the transform into a convolution with a chirp. */
static void transform_bluestein(m2_fft *fft, m2_complex *x)
{
    m2_complex *work = fft->work;
    for (int64_t i = 0; i < fft->n; i++) work[i] = multiply(x[i], fft->chirp[i]);
    memset(work + fft->n, 0, (size_t)(fft->n_direct - fft->n) * sizeof *work);
    transform_direct(fft, work);
    for (int64_t i = 0; i < fft->n_direct; i++) work[i] = multiply(work[i], fft->filter[i]);
    conjugate(work, fft->n_direct);
    transform_direct(fft, work);
    conjugate(work, fft->n);
    for (int64_t i = 0; i < fft->n; i++) x[i] = multiply(work[i], fft->chirp[i]);
}

static void make_chirp(m2_fft *fft)
{
    const int64_t n = fft->n;
    const double scale = 1.0 / (double)fft->n_direct;
    for (int64_t k = 0; k < n; k++) {
        fft->chirp[k] = unit_root(k * k % (2 * n), 2 * n);
        const m2_complex value = { fft->chirp[k].re * scale, -fft->chirp[k].im * scale };
        fft->filter[k] = value;
        if (k > 0) fft->filter[fft->n_direct - k] = value;
    }
    transform_direct(fft, fft->filter);
}

m2_status m2_fft_create(int64_t n, m2_fft **fft_out)
{
    if (n < 1 || n > M2_FFT_LENGTH_MAX)
        return m2_fail(M2_ERR_ARG, "a Fourier transform of %lld values: 1 ... %lld can be had",
                       (long long)n, (long long)M2_FFT_LENGTH_MAX);
    m2_fft *fft = calloc(1, sizeof *fft);
    if (!fft) goto no_memory;
    fft->n = fft->n_direct = n;
    const int is_smooth = factorise(n, fft->factors, &fft->n_factors) == 1;
    if (!is_smooth) {
        fft->n_direct = 1;
        while (fft->n_direct < 2 * n - 1) fft->n_direct *= 2;
        factorise(fft->n_direct, fft->factors, &fft->n_factors);
        fft->chirp = malloc((size_t)n * sizeof(m2_complex));
        fft->filter = calloc((size_t)fft->n_direct, sizeof(m2_complex));
        fft->work = malloc((size_t)fft->n_direct * sizeof(m2_complex));
        if (!fft->chirp || !fft->filter || !fft->work) goto no_memory;
    }
    fft->roots = malloc((size_t)fft->n_direct * sizeof(m2_complex));
    fft->scratch = malloc((size_t)fft->n_direct * sizeof(m2_complex));
    if (!fft->roots || !fft->scratch) goto no_memory;
    for (int64_t k = 0; k < fft->n_direct; k++) fft->roots[k] = unit_root(k, fft->n_direct);
    if (!is_smooth) make_chirp(fft);
    *fft_out = fft;
    return M2_OK;
no_memory:
    m2_fft_destroy(fft);
    return m2_fail(M2_ERR_MEMORY, "no memory for a Fourier transform of %lld values", (long long)n);
}

void m2_fft_destroy(m2_fft *fft)
{
    if (!fft) return;
    free(fft->roots);
    free(fft->scratch);
    free(fft->chirp);
    free(fft->filter);
    free(fft->work);
    free(fft);
}

void m2_fft_forward(m2_fft *fft, m2_complex *x)
{
    if (fft->chirp)
        transform_bluestein(fft, x);
    else
        transform_direct(fft, x);
}

void m2_fft_inverse(m2_fft *fft, m2_complex *x)
{
    conjugate(x, fft->n);
    m2_fft_forward(fft, x);
    conjugate(x, fft->n);
}
