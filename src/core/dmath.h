/* dmath.h - log, expm1, sin and cos in f64, of our own, for tables and seeds.
 *
 * What is derived on the host (the coefficients of the sampler, the draws of the CPU generator) must
 * not change with the C library.  Only sums, products, divisions and FMAs are used, each correctly
 * rounded, so the bits are the same with every compiler and machine.  Plain series: these run a few
 * times a step, not per element.
 *
 * Error  below 2 units of the last place in the ranges given (tests/core/test_dmath.c).
 */
#ifndef M2_CORE_DMATH_H
#define M2_CORE_DMATH_H

/* x >= 0; 0 gives -infinity, infinity gives itself, negative numbers and NaN give NaN. */
double m2_log64(double x);
/* e^x - 1 for any x. */
double m2_expm1_64(double x);
/* |x| <= 64. */
double m2_sin64(double x);
double m2_cos64(double x);

#endif
