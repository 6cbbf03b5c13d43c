/* check.h - what every test includes: cmocka and checks that say what they saw. */
#ifndef M2_TESTS_SUPPORT_CHECK_H
#define M2_TESTS_SUPPORT_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/status.h"
#include "core/tensor.h"

/* Fails with the library's own message. */
#define check_ok(expression)                                                                       \
    do {                                                                                           \
        const m2_status check_status_ = (expression);                                              \
        if (check_status_ != M2_OK)                                                                \
            fail_msg("%s: %s: %s", #expression, m2_status_name(check_status_), m2_last_error());   \
    } while (0)

/* Expects `status` and a message that holds `part`. */
#define check_fails(expression, status, part)                                                      \
    m2_test_check_fails((expression), (status), (part), #expression, __FILE__, __LINE__)

/* |a - b| <= tolerance; the format says which case. */
#define check_near(a, b, tolerance, ...)                                                           \
    m2_test_check_near((double)(a), (double)(b), (double)(tolerance), __FILE__, __LINE__,          \
                       __VA_ARGS__)

void m2_test_check_fails(m2_status got, m2_status wanted, const char *part, const char *expression,
                         const char *file, int line);
void m2_test_check_near(double a, double b, double tolerance, const char *file, int line,
                        const char *format, ...) __attribute__((format(printf, 6, 7)));

/* ||x - truth|| / ||truth|| over n values (0 if both are zero). */
double m2_test_relative_error(const void *x, m2_dtype x_dtype, const void *truth,
                              m2_dtype truth_dtype, int64_t n);

/* Repeatable numbers for tests: splitmix64. */
typedef struct m2_test_random {
    uint64_t state;
} m2_test_random;
uint64_t m2_test_random_u64(m2_test_random *random);
float m2_test_random_uniform(m2_test_random *random, float low, float high);
/* About normal, mean 0, deviation 1. */
float m2_test_random_normal(m2_test_random *random);

/* A directory for this test's files, removed with all in it by m2_test_remove_tree. */
char *m2_test_make_dir(void);
void m2_test_remove_tree(char *path);
/* Path of a committed fixture: tests/<relative>; a static buffer, one use at a time. */
const char *m2_test_path(const char *relative);

#endif
