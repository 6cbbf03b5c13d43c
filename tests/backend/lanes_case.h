/* lanes_case.h - the scalar table against every faster one of this machine, over random shapes, on
 * 1, 2 and 5 threads: the same bits.
 */
#ifndef M2_TESTS_BACKEND_LANES_CASE_H
#define M2_TESTS_BACKEND_LANES_CASE_H

#include "backend/draw.h"

void check_operator(const char *name, draw_and_run *draw, int n_cases);

#endif
