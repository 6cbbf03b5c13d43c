#include "core/dmath.h"

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* ln 2 and pi / 2 in two parts: n * HI is exact for the n that occur (HI has 33 bits or fewer). */
#define LN2_HI  0x1.62e42feep-1
#define LN2_LO  0x1.a39ef35793c76p-33
#define PI_2_HI 0x1.921fb544p+0
#define PI_2_LO 0x1.0b4611a626331p-34

static double scale_by_power(double x, int n)
{
    /* In two steps, so that neither power leaves the range of f64. */
    const int half = n / 2;
    const uint64_t a = (uint64_t)(1023 + half) << 52, b = (uint64_t)(1023 + n - half) << 52;
    double first, second;
    memcpy(&first, &a, sizeof first);
    memcpy(&second, &b, sizeof second);
    return x * first * second;
}

/* ln x = n ln 2 + 2 atanh(s), s = (m - 1) / (m + 1), m in [sqrt 1/2, sqrt 2). */
double m2_log64(double x)
{
    if (!(x >= 0)) return NAN;
    if (x == 0) return -INFINITY;
    if (x == INFINITY) return x;
    int n = 0;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        n = -54;
    }
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    n += (int)(bits >> 52) - 1023;
    bits = (bits & 0x000fffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 0x1.6a09e667f3bcdp+0) {
        m *= 0.5;
        n++;
    }
    /* With f = m - 1 (exact): 2 atanh(s) = f - f^2/2 + s (f^2/2 + R(s^2)), which keeps f whole. */
    const double f = m - 1;
    const double s = f / (2 + f);
    const double z = s * s;
    double series = 0;
    for (int k = 23; k >= 3; k -= 2) series = series * z + 2.0 / k;
    const double half_square = 0.5 * f * f;
    const double rest = s * (half_square + z * series) + n * LN2_LO;
    return n * LN2_HI + (f - (half_square - rest));
}

/* e^r - 1 for |r| <= ln 2 / 2, the first term kept whole. */
static double expm1_reduced(double r)
{
    double series = 0;
    for (int k = 16; k >= 3; k--) series = (series + 1) * r / k;
    return r + 0.5 * r * r * (1 + series);
}

double m2_expm1_64(double x)
{
    if (x != x || x == 0) return x;
    if (x < -40) return -1;
    if (x > 709.8) return INFINITY;
    const double n = floor(x * 0x1.71547652b82fep+0 + 0.5);
    const double r = (x - n * LN2_HI) - n * LN2_LO;
    const double e = expm1_reduced(r);
    if (n == 0) return e;
    if (n > 60) return scale_by_power(e + 1, (int)n);
    const double scale = scale_by_power(1, (int)n);
    return scale * e + (scale - 1);
}

/* The rest after n quarter turns, n in the low bits of *quadrant_out. */
static double angle_reduce(double x, int *quadrant_out)
{
    assert(fabs(x) <= 64);
    const double n = floor(x * 0x1.45f306dc9c883p-1 + 0.5);
    *quadrant_out = (int)n & 3;
    return (x - n * PI_2_HI) - n * PI_2_LO;
}

static double sin_reduced(double r)
{
    const double z = r * r;
    double series = 0;
    for (int k = 19; k >= 3; k -= 2) series = -(series + 1) * z / (k * (k - 1));
    return r + r * series;
}

static double cos_reduced(double r)
{
    const double z = r * r;
    double series = 0;
    for (int k = 20; k >= 2; k -= 2) series = -(series + 1) * z / (k * (k - 1));
    return 1 + series;
}

static double sin_quadrant(double r, int quadrant)
{
    const double value = quadrant & 1 ? cos_reduced(r) : sin_reduced(r);
    return quadrant & 2 ? -value : value;
}

double m2_sin64(double x)
{
    int quadrant;
    const double r = angle_reduce(x, &quadrant);
    return sin_quadrant(r, quadrant);
}

double m2_cos64(double x)
{
    int quadrant;
    const double r = angle_reduce(x, &quadrant);
    return sin_quadrant(r, (quadrant + 1) & 3);
}
