#include "backend/gpu/gate.h"

#include <assert.h>
#include <pthread.h>

/* One for the process, as captures are.  Who wants to record goes first: with three engines at work
 * there may never be a moment without somebody inside. */
static pthread_rwlock_t gate = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
static _Thread_local int n_inside;

void m2_gpu_enter(void)
{
    if (n_inside++ == 0) pthread_rwlock_rdlock(&gate);
}

void m2_gpu_enter_alone(void)
{
    assert(n_inside == 0);
    n_inside = 1;
    pthread_rwlock_wrlock(&gate);
}

void m2_gpu_leave(void)
{
    assert(n_inside > 0);
    if (--n_inside == 0) pthread_rwlock_unlock(&gate);
}
