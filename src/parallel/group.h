/* group.h - ranks that work together: collectives and agreement.
 *
 * Shapes are per rank.  One rank is not a special case: parallel/solo.c is a real implementation,
 * whose collectives are copies or nothing.
 */
#ifndef M2_PARALLEL_GROUP_H
#define M2_PARALLEL_GROUP_H

#include "core/status.h"

#include <stddef.h>

typedef struct m2_group m2_group;
struct m2_group {
    const char *name; /* "world", "sp" ... */
    int rank, size;
    void *state;
    /* Everyone gets the worst status of all ranks: an error on one rank is one on all. */
    m2_status (*agree)(m2_group *group, m2_status mine);
    m2_status (*barrier)(m2_group *group);
    /* [bytes] of `root` to everyone's buffer. */
    m2_status (*broadcast)(m2_group *group, void *buffer, size_t bytes, int root);
    /* [bytes] of each rank -> [size, bytes] on every rank. */
    m2_status (*all_gather)(m2_group *group, const void *mine, size_t bytes, void *all);
    /* [size, bytes] -> [size, bytes]: block r goes to rank r. */
    m2_status (*all_to_all)(m2_group *group, const void *from, size_t bytes, void *to);
    void (*destroy)(m2_group *group);
};

/* The group of one rank. */
void m2_group_init_solo(m2_group *group, const char *name);

static inline m2_status m2_group_agree(m2_group *group, m2_status mine)
{
    return group->agree(group, mine);
}

#endif
