#include "support/check.h"

#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void m2_test_check_fails(m2_status got, m2_status wanted, const char *part, const char *expression,
                         const char *file, int line)
{
    if (got == wanted && strstr(m2_last_error(), part)) return;
    print_error("%s: expected %s with \"%s\", got %s: %s\n", expression, m2_status_name(wanted),
                part, m2_status_name(got), m2_last_error());
    _fail(file, line);
}

void m2_test_check_near(double a, double b, double tolerance, const char *file, int line,
                        const char *format, ...)
{
    if (fabs(a - b) <= tolerance) return;
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    print_error("%.9g is not within %.3g of %.9g: %s\n", a, tolerance, b, text);
    _fail(file, line);
}

double m2_test_relative_error(const void *x, m2_dtype x_dtype, const void *truth,
                              m2_dtype truth_dtype, int64_t n)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        double a, b;
        m2_convert((const char *)x + (size_t)i * m2_dtype_bytes(x_dtype), x_dtype, &a, M2_F64, 1);
        m2_convert((const char *)truth + (size_t)i * m2_dtype_bytes(truth_dtype), truth_dtype, &b,
                   M2_F64, 1);
        difference += (a - b) * (a - b);
        norm += b * b;
    }
    if (difference == 0) return 0;
    return norm == 0 ? INFINITY : sqrt(difference / norm);
}

uint64_t m2_test_random_u64(m2_test_random *random)
{
    uint64_t z = (random->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

float m2_test_random_uniform(m2_test_random *random, float low, float high)
{
    const double u = (double)(m2_test_random_u64(random) >> 11) * 0x1p-53;
    return (float)(low + (high - low) * u);
}

float m2_test_random_normal(m2_test_random *random)
{
    double sum = 0;
    for (int i = 0; i < 12; i++) sum += (double)(m2_test_random_u64(random) >> 11) * 0x1p-53;
    return (float)(sum - 6.0);
}

char *m2_test_make_dir(void)
{
    char *path = strdup("/tmp/magi2-test-XXXXXX");
    if (!path || !mkdtemp(path)) fail_msg("no directory for the test's files");
    return path;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info;
    (void)type;
    (void)walk;
    return remove(path);
}

void m2_test_remove_tree(char *path)
{
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(path);
}

const char *m2_test_path(const char *relative)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", M2_TESTS_DIR, relative);
    return path;
}
