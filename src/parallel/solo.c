/* solo.c - a group of one rank. */
#include "parallel/group.h"

#include <assert.h>
#include <string.h>

static m2_status solo_agree(m2_group *group, m2_status mine)
{
    (void)group;
    return mine;
}

static m2_status solo_barrier(m2_group *group)
{
    (void)group;
    return M2_OK;
}

static m2_status solo_broadcast(m2_group *group, void *buffer, size_t bytes, int root)
{
    (void)group;
    (void)buffer;
    (void)bytes;
    assert(root == 0);
    (void)root;
    return M2_OK;
}

static m2_status solo_copy(m2_group *group, const void *from, size_t bytes, void *to)
{
    (void)group;
    if (from != to) memmove(to, from, bytes);
    return M2_OK;
}

static void solo_destroy(m2_group *group)
{
    (void)group;
}

void m2_group_init_solo(m2_group *group, const char *name)
{
    *group = (m2_group){
        .name = name,
        .rank = 0,
        .size = 1,
        .agree = solo_agree,
        .barrier = solo_barrier,
        .broadcast = solo_broadcast,
        .all_gather = solo_copy,
        .all_to_all = solo_copy,
        .destroy = solo_destroy,
    };
}
