/* groups.h - which weight slice a row of a grouped operator uses. */
#ifndef M2_BACKEND_CPU_REF_GROUPS_H
#define M2_BACKEND_CPU_REF_GROUPS_H

#include <assert.h>

#include "backend/ops.h"

/* Group of row `row`; 0 without groups. */
static inline int m2_ref_group_of(const m2_groups *groups, int64_t row)
{
    if (!groups) return 0;
    int group = 0;
    while (row >= groups->begin[group + 1]) group++;
    assert(group < groups->n_groups);
    return group;
}

#endif
