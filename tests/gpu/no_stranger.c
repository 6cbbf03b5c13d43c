#include "gpu/stranger.h"

#include <stddef.h>

stranger *stranger_start(int device)
{
    (void)device;
    return NULL;
}

long stranger_end(stranger *it)
{
    (void)it;
    return 0;
}
